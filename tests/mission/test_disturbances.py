"""Disturbed missions against a loop over UAVs, cells and messages."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.special import ndtri

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict
from marl_framework.kernels.cells import bayes_update
from marl_framework.mission.camera_noise import CameraNoise
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState, ResetDraws, StepDraws
from marl_framework.observations.builder import ObservationBuilder
from tests.small import random_actions, small_config

E, N = 3, 3
STRENGTHS = ("bias", "jitter", "factor", "miss", "false_alarm", "lost_frames", "burst", "wind")
NEUTRAL = {"factor": 1.0}


def value(spread: Any, draw: float) -> float:
    """Return the value that a draw selects from a number, a list or a range."""
    if isinstance(spread, dict):
        return spread["low"] + draw * (spread["high"] - spread["low"])
    return spread[int(draw * len(spread))] if isinstance(spread, tuple) else spread


class PlainMission:
    """One mission of a batch; reads draws and positions, and computes everything else itself."""

    def __init__(self, env: MissionEnvironment, draws: ResetDraws, e: int, given: dict[str, Any]):
        self.env, self.e = env, e
        off = {name: (NEUTRAL.get(name, 0.0), None) for name in STRENGTHS}
        on = [name for name in STRENGTHS if given.get(name, off[name][0]) not in off[name]]
        u = [] if draws.spreads is None else draws.spreads[e].tolist()
        at = {name: value(given[name], u[k]) for k, name in enumerate(on)}
        self.at = {name: at.get(name, NEUTRAL.get(name, 0.0)) for name in STRENGTHS}
        self.delays = given["delay"] if isinstance(given["delay"], tuple) else (given["delay"],)
        self.bias = torch.zeros(N, 2)
        if draws.bias is not None:
            self.bias = self.at["bias"] * ndtri(draws.bias[e].clamp(1e-6, 1 - 1e-6))
        if at.get("wind"):
            angle = 2 * math.pi * u[-1]
            self.wind = at["wind"] * torch.tensor([math.cos(angle), math.sin(angle)])
        else:
            self.wind = torch.zeros(2)
        prior = env.config.mapping.prior
        self.own = torch.full((N, *env.camera.shape), prior)
        self.shared = torch.full(env.camera.shape, prior)
        self.noises = [CameraNoise(env.camera, 1) for _ in range(N)]
        self.lost: dict[tuple[int, int], bool] = {}
        self.messages: list[tuple[int, int, int, int, Tensor, Tensor, Tensor]] = []
        self.t = 0

    def step(self, state: MissionState, flying: Tensor, draws: StepDraws) -> None:
        """Read, send and fuse at the new positions; `flying` are the UAVs that moved."""
        e, camera = self.e, self.env.camera
        position = state.positions[e]
        reading = torch.stack(
            [self.read(state, i, draws) if flying[i] else torch.zeros(camera.shape).char()
             for i in range(N)]
        )  # fmt: skip
        odds = camera.odds[position[:, 2]]
        if camera.adapts:  # of its own camera, from its own readings
            for i, noise in enumerate(self.noises):
                noise.add(state[e : e + 1], (flying & (torch.arange(N) == i)).unsqueeze(0))
            learned = torch.cat([noise.caution() for noise in self.noises])
            odds = odds ** (learned.mul(5).round().clamp(min=1) / 5).unsqueeze(1)
        for i, j in product(range(N), range(N)):
            if i == j or not (flying[i] and flying[j]):
                self.loses(i, j, draws)  # the link's state goes on
                continue
            metres = self.env.lattice.metres(position[[i, j]])
            near = (metres[0] - metres[1]).norm() <= state.communication_range[e] + 1e-3
            if not self.loses(i, j, draws) and near:
                draw = 0.0 if draws.delays is None else float(draws.delays[e, i, j])
                delay = self.delays[int(draw * len(self.delays))]
                sent = self.t, j, i, self.t + delay, reading[j], odds[j], position[j].clone()
                self.messages.append(sent)
        prior = self.env.config.mapping.prior
        for i in range(N):
            self.shared = bayes_update(self.shared, reading[i], odds[i], prior)
            self.own[i] = bayes_update(self.own[i], reading[i], odds[i], prior)
        self.heard = torch.eye(N, dtype=torch.bool)
        self.known = position.expand(N, -1, -1).clone()  # [viewer, UAV, 3]
        for _, j, i, due, signs, sender, place in sorted(
            self.messages, key=lambda message: (-message[0], message[1])
        ):
            if due == self.t and flying[i]:
                self.own[i] = bayes_update(self.own[i], signs, sender, prior)
                if not self.heard[i, j]:  # the newest message counts
                    self.heard[i, j], self.known[i, j] = True, place
        self.reading, self.t = reading, self.t + 1

    def loses(self, i: int, j: int, draws: StepDraws) -> bool:
        draw, rate = float(draws.communication[self.e, i, j]), self.env.config.experiment.uav
        share, burst = float(torch.tensor(rate.failure_rate)), self.at["burst"]
        if (i, j) not in self.lost or not burst:
            lost = draw < share
        elif self.lost[i, j]:
            lost = draw >= 1 / burst
        else:
            lost = draw < share / (1 - share) / burst
        self.lost[i, j] = lost
        return lost

    def read(self, state: MissionState, i: int, draws: StepDraws) -> Tensor:
        """Return a full map of +1, -1, and 0 outside the footprint."""
        e, camera, signs = self.e, self.env.camera, torch.zeros(self.env.camera.shape).char()
        numbers = torch.full((3,), 0.5) if draws.numbers is None else draws.numbers[e, i]
        if float(numbers[2]) < self.at["lost_frames"]:
            return signs
        error = self.bias[i] + self.at["jitter"] * ndtri(numbers[:2].clamp(1e-6, 1 - 1e-6))
        down, right = (
            round(float(by) / cell)
            for by, cell in zip(error, self.env.config.geometry.cell_size, strict=True)
        )
        z = int(state.positions[e, i, 2])
        rates = camera.model_rates[z] * self.at["factor"]
        miss, false_alarm = (
            round(min(max(float(rate) + self.at[name], 0), 1) * 2**16)
            for rate, name in zip(rates, ("miss", "false_alarm"), strict=True)
        )
        box = [int(edge[e, i]) for edge in camera.footprint(state.positions)]
        row0, row1, col0, col1, window_row, window_col, *_ = box
        rows, cols = camera.shape
        truth, bits = state.truth[e].tolist(), draws.sensor[e, i].tolist()
        for r, c in product(range(row0, row1), range(col0, col1)):
            interest = truth[min(max(r + down, 0), rows - 1)][min(max(c + right, 0), cols - 1)]
            bit = bits[r - window_row][c - window_col] + 2**15
            wrong = bit < (miss if interest else false_alarm)
            signs[r, c] = 1 if interest != wrong else -1
        return signs


spread = st.one_of(st.floats(0.01, 1), st.just({"low": 0.2, "high": 1.0}), st.just((0.0, 0.7)))


@given(
    seed=st.integers(0, 1000),
    bias=st.one_of(st.just(0.0), spread),
    jitter=st.sampled_from([0.0, 2.0, {"low": 0.0, "high": 30.0}]),
    reality=st.sampled_from(
        [{}, {"factor": 2.0}, {"miss": (0.0, 0.3), "false_alarm": -0.1},
         {"lost_frames": 0.5}, {"factor": 0.0, "lost_frames": (0.0, 1.0)}]
    ),
    failures=st.sampled_from(
        [(0.0, None), (0.4, None), (0.4, 2.0), (0.5, {"low": 1.0, "high": 4.0})]
    ),
    delay=st.sampled_from([0, 1, (0, 2), (0, 1, 3)]),
    crash_rate=st.sampled_from([0.0, 0.2]),
    adapt=st.booleans(),
    compiled=st.booleans(),
)  # fmt: skip
@settings(max_examples=25)
def test_a_disturbed_mission_equals_a_loop_over_its_uavs(
    seed: int,
    bias: Any,
    jitter: Any,
    reality: dict[str, Any],
    failures: tuple[float, Any],
    delay: Any,
    crash_rate: float,
    adapt: bool,
    compiled: bool,
) -> None:
    uav = {
        "position_error": {"bias": bias, "jitter": jitter}, "failure_rate": failures[0],
        "failure_burst": failures[1], "delay": delay, "crash_rate": crash_rate,
        "communication_range": 18.0,
    }  # fmt: skip
    options: dict[str, Any] = {
        "agents": N, "dims": (20.0, 15.0), "pixels": (5, 7), "seed": seed,
        "compute": {"compile": compiled}, "observation": {"uncertainty": True},
    }  # fmt: skip
    sensor = {"model": {"adapt": adapt}, "reality": reality}
    config = small_config(uav=uav, sensor=sensor, **options)
    env = MissionEnvironment(config, E, "cpu")
    prompt = small_config(uav=uav | {"delay": 0}, **options)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    plain_builder = ObservationBuilder(prompt, env.lattice, env.camera)
    draws = env.draw_reset()
    strengths = {"bias": bias, "jitter": jitter, "burst": failures[1], "delay": delay, **reality}
    missions = [PlainMission(env, draws, e, strengths) for e in range(E)]
    state, step = env.reset(draws), draws.first
    flying = torch.ones(E, N, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(env.episode_length + 1):
        for e, mission in enumerate(missions):
            if not flying[e].any():
                continue
            mission.step(state, flying[e], step)
            window = env.camera.window_index(env.camera.footprint(state.positions))[e]
            seen = torch.stack(
                [mission.reading[i].flatten()[window[i]].where(flying[e, i], 0) for i in range(N)]
            )
            assert torch.equal(state.readings[e].flatten(1), seen)
            torch.testing.assert_close(state.global_belief[e], mission.shared)
            torch.testing.assert_close(state.beliefs[e], mission.own)
        if state.active.all():
            maps = builder.actor(state)
            for i in range(N):
                viewed = state.clone()
                viewed.positions.copy_(torch.stack([m.known[i] for m in missions]))
                viewed.heard[:, i] = torch.stack([m.heard[i] for m in missions])
                assert torch.equal(maps[:, i], plain_builder.actor(viewed)[:, i])
        flying = state.active.clone()
        state.truth.copy_(torch.rand(state.truth.shape, generator=generator) < 0.5)
        step = env.draw_step()
        env.step(state, random_actions(env, state, generator), step)


@given(wind=spread, actions=st.sampled_from([6, 27]), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_moves_in_wind_cost_as_long_as_they_take(wind: Any, actions: int, seed: int) -> None:
    """The airspeed is 1: ground velocity minus wind has this length."""
    halved = (
        {k: v * 0.9 for k, v in wind.items()}
        if isinstance(wind, dict)
        else tuple(0.9 * v for v in wind) if isinstance(wind, tuple) else 0.9 * wind
    )  # fmt: skip
    cost = {"limit": 5000.0, "wind": halved, "climb": 2.0, "reading": 1.0, "horizontal": 0.5}
    env = MissionEnvironment(
        small_config(constraints={"cost": cost}, agents=N, actions=actions, seed=seed), E, "cpu"
    )
    draws = env.draw_reset()
    missions = [PlainMission(env, draws, e, {"wind": halved, "delay": 0}) for e in range(E)]
    state = env.reset(draws)
    step = env.draw_step()
    chosen = random_actions(env, state, torch.Generator().manual_seed(seed))
    env.step(state, chosen, step)
    for e, n in product(range(E), range(N)):
        *planar, dz = env.lattice.offsets[chosen[e, n]].tolist()
        metres, paid = 5 * math.hypot(*planar), float(state.limit[e, n] - state.left[e, n])
        paid -= 1.0 + (10.0 * dz if dz > 0 else -5.0 * dz)
        if metres:
            speed = 0.5 * metres / paid
            ground = speed * torch.tensor(planar) / math.hypot(*planar)
            assert float((ground - missions[e].wind).norm()) == pytest.approx(1, abs=1e-5)
        else:
            assert paid == pytest.approx(0, abs=1e-9)


def test_bursts_have_their_rate_and_length() -> None:
    rate, burst = 0.3, 4.0
    uav = {"failure_rate": rate, "failure_burst": burst, "communication_range": math.inf}
    config = small_config(uav=uav, agents=4, budget=60, dims=(10.0, 10.0), pixels=(2, 2))
    env = MissionEnvironment(config, 100, "cpu")
    state = env.reset()
    lost = [~state.heard]
    for _ in range(60):
        env.step(state, random_actions(env, state, env.generator))
        lost.append(~state.heard)
    links = torch.stack(lost)[:, :, ~torch.eye(4, dtype=torch.bool)]  # 61 × 1,200
    began = (links[1:] & ~links[:-1]).sum() + links[0].sum()
    assert float(links.float().mean()) == pytest.approx(rate, abs=0.02)
    assert float(links.sum() / began) == pytest.approx(burst, rel=0.1)  # the last ones are cut


@pytest.mark.parametrize(
    ("experiment", "key"),
    [
        ({"uav": {"failure_rate": 0.8, "failure_burst": 2.0}}, "uav.failure_burst"),
        ({"constraints": {"cost": {"wind": 0.2}}}, "constraints.cost.wind"),
        ({"constraints": {"cost": {"limit": 20.0, "wind": 0.8}}}, "constraints.cost.limit"),
        ({"uav": {"delay": 9}}, "uav.delay"),
        ({"uav": {"position_error": {"bias": {"low": 2, "high": 1}}}}, "uav.position_error.bias"),
        ({"uav": {"position_error": {"jitter": {"low": -1, "high": 1}}}}, "jitter.low"),
    ],
)
def test_values_that_do_not_fit_name_their_key(experiment: dict[str, Any], key: str) -> None:
    def load() -> None:
        MissionEnvironment(config_from_dict({"experiment": experiment}, "file"), 1, "meta")

    with pytest.raises(ConfigError, match=rf"^[^\n]*experiment\.[a-z_.]*{key}\b[^\n]*$"):
        load()
