"""Caution: UAVs trust the camera less than its error rates allow."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sensor import cautious_rates, reading_odds
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
        state = env.reset()
        env.step(state, random_actions(env, state, torch.Generator()))
        flights.append(state)
    sure, careful = (torch.logit(state.global_belief.double()) for state in flights)
    assert torch.equal(flights[0].readings, flights[1].readings)
    torch.testing.assert_close(careful, sure / 2, rtol=1e-3, atol=1e-3)
