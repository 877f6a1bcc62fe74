"""Caution, and error rates that UAVs estimate in flight."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.kernels.versions import Version
from marl_framework.kernels.windows import contradictions
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sensor import cautious_rates, estimated_rates, reading_odds
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import random_actions, small_config

rate = st.floats(0.005, 0.45)


@given(miss=rate, false_alarm=rate, caution=st.floats(0.05, 1))
def test_caution_is_a_power_of_the_odds(miss: float, false_alarm: float, caution: float) -> None:
    rates = torch.tensor([miss, false_alarm], dtype=torch.float64)
    assumed = cautious_rates(rates, caution)
    torch.testing.assert_close(reading_odds(assumed), reading_odds(rates) ** caution)
    assert (assumed > 0).all()
    assert assumed.sum() < 1


def test_caution_makes_beliefs_less_sure_and_changes_no_reading() -> None:
    flights = []
    for caution in (1.0, 0.5):
        config = small_config(sensor=ASYMMETRIC, mapping={"caution": caution})
        env = MissionEnvironment(config, 4, "cpu")
        state = env.reset(env.draw_reset())
        env.step(state, random_actions(env, state, torch.Generator()), env.draw_step())
        flights.append(state)
    sure, careful = (torch.logit(state.global_belief.double()) for state in flights)
    assert torch.equal(flights[0].readings, flights[1].readings)
    torch.testing.assert_close(careful, sure / 2, rtol=1e-3, atol=1e-3)


@given(miss=rate, false_alarm=rate, q=st.tuples(st.floats(0.7, 1), st.floats(0.7, 1)))
def test_estimates_are_the_rates_that_explain_the_counts(
    miss: float, false_alarm: float, q: tuple[float, float]
) -> None:
    wrong = (
        q[0] * miss + (1 - q[0]) * (1 - false_alarm),
        q[1] * false_alarm + (1 - q[1]) * (1 - miss),
    )
    counts = torch.tensor([[w, side, 1.0] for w, side in zip(wrong, q, strict=True)]).double()
    torch.testing.assert_close(
        estimated_rates(70 * counts), torch.tensor([miss, false_alarm]).double()
    )


@given(seed=st.integers(0, 1000), version=st.sampled_from([Version.PLAIN, Version.LOOPS]))
@settings(max_examples=10, deadline=None)
def test_contradictions_are_counted_cell_by_cell(seed: int, version: Version) -> None:
    env = MissionEnvironment(small_config(agents=2, pixels=(5, 7), dims=(20, 15)), 2, "cpu")
    generator = torch.Generator().manual_seed(seed)
    state = env.reset(env.draw_reset())
    state.beliefs.copy_(torch.rand(state.beliefs.shape, generator=generator))
    state.beliefs[torch.rand(state.beliefs.shape, generator=generator) < 0.2] = 0.5
    active = torch.tensor([True, seed % 2 == 0])
    frames = torch.rand(2, 2, generator=generator) < 0.7
    view = env.fusion.view(state, active, frames)
    env.fusion.read(state, view, env.draw_step().sensor)
    found = contradictions(version, view, state.readings, state.beliefs)
    expected = torch.zeros(2, 2, 2, 3)
    for e, n in product(range(2), range(2)):
        row0, row1, col0, col1, window_row, window_col, *_ = view.boxes[e, n].tolist()
        for r, c in product(range(row0, row1), range(col0, col1)) if active[e] else ():
            p, sign = (
                float(state.beliefs[e, n, r, c]),
                state.readings[e, n, r - window_row, c - window_col],
            )
            side, q = (0, p) if p > 0.5 else (1, 1 - p)
            weight = (2 * q - 1) ** 8
            contradicts = sign < 0 if side == 0 else sign > 0
            expected[e, n, side] += weight * torch.tensor([float(contradicts), q, 1.0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("added", [0.0, 0.1])
def test_rates_are_found_in_flight(added: float) -> None:
    """A camera errs more than assumed; missions of many moves at the lowest altitude learn it."""
    sensor = {"reality": {"miss": added, "false_alarm": added}, "model": {"adapt": True}}
    config = small_config(sensor=sensor, actions=4, max_altitude=5.0, budget=60, agents=3)
    env = MissionEnvironment(config, 4, "cpu")
    state = env.reset(env.draw_reset())
    for _ in range(60):
        env.step(state, random_actions(env, state, env.generator), env.draw_step())
    rates = estimated_rates(state.counts)[:, 0]
    torch.testing.assert_close(rates, torch.full_like(rates, 0.01 + added), rtol=0, atol=0.03)
    odds = reading_odds(estimated_rates(state.counts))
    torch.testing.assert_close(state.odds, odds)
