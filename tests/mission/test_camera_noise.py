"""Caution learned from readings: loops over cells, and rates that are known."""

from itertools import product

import numpy as np
import pytest
import torch

from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.mission.camera_noise import CameraNoise
from marl_framework.mission.environment import MissionEnvironment
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import random_actions, small_config

MISREAD = ("sensor.reality.miss", "sensor.reality.false_alarm")


def flown(env: MissionEnvironment, moves: int) -> CameraNoise:
    noise, state = CameraNoise(env.camera, env.num_envs), env.reset()
    noise.add(state, state.active)
    for _ in range(moves):
        env.step(state, random_actions(env, state, env.generator))
        noise.add(state, state.active)
    return noise


@pytest.mark.parametrize("field", [None, "random"])
def test_pairs_of_cells_are_compared_one_by_one(field: str | None) -> None:
    config = small_config(num_envs=2, environment={"field": field}, pixels=(9, 12))
    env = MissionEnvironment(config, 2, "cpu")
    state = env.reset()
    taken = torch.tensor([[True, False, True], [True, True, False]])
    state.positions[..., 2] = torch.tensor([[0, 1, 2], [2, 2, 1]])
    view = env.fusion.view(state, torch.ones(2, dtype=torch.bool))
    bits = torch.randint(-(2**15), 2**15, state.readings.shape, dtype=torch.int16)
    env.fusion.read(state, view, bits)
    noise = CameraNoise(env.camera, 2)
    noise.add(state, taken)

    assumed = env.camera.error_rates.mean(-1).double().numpy()
    products: dict[tuple[int, int, int], list[int]] = {}
    for e, n in taken.nonzero().tolist():
        z, reading = int(state.positions[e, n, 2]), state.readings[e, n].tolist()
        row, col = view.boxes[e, n, 4:6].tolist()
        for i, j in product(range(len(reading)), range(len(reading[0]))):
            for lag, (di, dj) in product((1, 2, 4), ((1, 0), (0, 1))):
                k, m = i + lag * di, j + lag * dj
                if k >= len(reading) or m >= len(reading[0]):
                    continue
                cells = ((row + i, col + j), (row + k, col + m))
                if field is not None and not all(state.inside[e, r, c] for r, c in cells):
                    continue
                if value := reading[i][j] * reading[k][m]:
                    products.setdefault((e, z, lag), []).append(value)
    errors, weights = (each.double().numpy() for each in noise.error_rates())
    for e, z in product(range(2), range(3)):
        if (e, z, 1) not in products:
            assert weights[e, z] == 0
            continue
        near, far, farther = (np.mean(products.get((e, z, lag), [0])) for lag in (1, 2, 4))
        change = max(near - far, 1e-6)
        growth = np.clip((far - farther) / change, 1.3, 2)
        nugget = np.clip(near + change / (growth - 1), 0, 1)
        assert errors[e, z] == pytest.approx((1 - np.sqrt(nugget)) / 2, abs=1e-5)
        certain = 1 - 2 * assumed[z]
        variance = 5 * (1 - certain**4) / (len(products[e, z, 1]) * (4 * certain) ** 2)
        assert weights[e, z] == pytest.approx(0.05**2 / (0.05**2 + variance), rel=1e-5)
    assert (noise.caution() <= 1).all()


@pytest.mark.parametrize("terrain", ["split", "landscape"])
@pytest.mark.parametrize("more", [0.0, 0.05])
def test_real_error_rates_are_learned(terrain: str, more: float) -> None:
    changes = [f"{key}={more}" for key in MISREAD]
    config = load_config("params.yaml", [f"sensor.simulation.kinds=[{terrain}]", *changes])
    env = MissionEnvironment(config, 4, "cpu")
    noise = flown(env, 6)
    assumed = env.camera.error_rates.mean(-1)
    errors, weights = noise.error_rates()
    known = weights > 0.5
    assert known.any(0).all()
    assert (errors - assumed - more)[known].abs().max() < 0.02
    true = (assumed + more).logit() / assumed.logit()
    caution = noise.caution()
    assert caution.shape == (4,)
    assert true.min() - 0.05 < caution.min() <= caution.max() < min(true.max() + 0.05, 1.0001)
    if not more:
        assert caution.min() > 0.95


@pytest.mark.parametrize("caution", [1e-9, 1e-3])
def test_a_camera_that_tells_next_to_nothing_is_no_problem(caution: float) -> None:
    config = small_config(mapping={"caution": caution, "prior": 0.5})
    noise = flown(MissionEnvironment(config, 2, "cpu"), 2)
    assert noise.assumed_rates().isfinite().all()
    assert ((noise.caution() > 0) & (noise.caution() <= 1)).all()


def test_without_readings_nothing_is_learned() -> None:
    env = MissionEnvironment(small_config(), 3, "cpu")
    state, noise = env.reset(), CameraNoise(env.camera, 3)
    assert noise.caution().tolist() == [1, 1, 1]
    noise.add(state, torch.zeros_like(state.active))
    assert noise.caution().tolist() == [1, 1, 1]


@pytest.mark.parametrize("terrain", ["split", "landscape"])
@pytest.mark.parametrize(("more", "low", "high"), [(0.0, 0.93, 1.0), (0.05, 0.7, 0.88)])
def test_misses_and_false_alarms_may_differ(
    terrain: str, more: float, low: float, high: float
) -> None:
    changes = [f"{key}={more}" for key in MISREAD]
    changes += [
        f"sensor.simulation.kinds=[{terrain}]",
        f"sensor.model.type={ASYMMETRIC['model']['type']}",
    ]
    caution = flown(MissionEnvironment(load_config("params.yaml", changes), 6, "cpu"), 6).caution()
    assert low < caution.min() <= caution.max() <= high


class MostlyWrong:
    """Reads most cells of one kind wrong, but a positive reading still raises the belief."""

    rates = (0.7, 0.05)

    def __init__(self, config: Config) -> None:
        self.miss, self.false_alarm = (lambda _, rate=rate: rate for rate in self.rates)


class MostlyAlarmed(MostlyWrong):
    rates = (0.05, 0.7)


@pytest.mark.parametrize(
    "changes",
    [
        (f"model.type={__name__}.MostlyWrong",),
        (f"model.type={__name__}.MostlyAlarmed",),
        ("model.table={5: 1.0e-6, 15: 1.0e-6}",),  # precise
        ("model.type=exponential", "model.coeff_a=0.5", "model.coeff_b=1.5"),  # blind at 15 m
        ("pixel.number_x=4", "pixel.number_y=4"),  # no cells 4 apart at 5 m
    ],
)
def test_a_camera_as_assumed_is_trusted(changes: tuple[str, ...]) -> None:
    overrides = [f"sensor.{change}" for change in ("simulation.kinds=[landscape]", *changes)]
    low = "experiment.constraints.max_altitude=5"
    overrides += [low] if changes[0].startswith("pixel") else []
    noise = flown(MissionEnvironment(load_config("params.yaml", overrides), 4, "cpu"), 6)
    assert noise.caution().min() > 0.9
