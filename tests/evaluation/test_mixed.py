"""Flights of missions that differ in team and budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from marl_framework.config.loading import with_changes
from marl_framework.evaluation.flight import FlightRecord, MissionStreams, fly
from marl_framework.evaluation.report import final_values
from marl_framework.mission.draws import ResetDraws, StepDraws
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from tests.mission.mixed import of_mission, reset_of_mission
from tests.small import small_config

MIXED: dict[str, Any] = {
    "agents": (2, 5),
    "budget": (2, 4),
    "uav": {"communication_range": (0.0, 15.0), "failure_rate": (0.0, 0.5)},
}
PLANNERS = ["coverage", "information_gain", "oracle"]


class Recorded:
    def __init__(self, env: MissionEnvironment) -> None:
        self._draws = MissionStreams(env, 5)
        self.resets: list[ResetDraws] = []
        self.steps: list[StepDraws] = []

    def draw_reset(self) -> ResetDraws:
        self.resets.append(self._draws.draw_reset())
        return self.resets[-1]

    def draw_step(self) -> StepDraws:
        self.steps.append(self._draws.draw_step())
        return self.steps[-1]


class OfOne:
    def __init__(self, recorded: Recorded, e: int, team: torch.Tensor) -> None:
        self._recorded, self._e, self._team = recorded, e, team
        self._steps = iter(recorded.steps)

    def draw_reset(self) -> ResetDraws:
        return reset_of_mission(self._recorded.resets[0], self._e, self._team)

    def draw_step(self) -> StepDraws:
        return of_mission(next(self._steps), self._e, self._team)


def flown(planner: str, env: MissionEnvironment, draws: Any) -> FlightRecord:
    return fly(env, make_planner(planner, env, None, True), torch.Generator(), draws)


@pytest.mark.parametrize("planner", PLANNERS)
def test_each_mission_is_flown_as_if_it_were_alone(planner: str) -> None:
    env = MissionEnvironment(small_config(**MIXED), 8, "cpu", "test")
    draws = Recorded(env)
    record = flown(planner, env, draws)
    assert {len(record.alone(e).path[0]) for e in range(8)} == {4, 6}
    for e in range(8):
        own = record.alone(e)
        readings, agents = own.active.shape[1:]
        config = env.config.of_mission(agents, readings - 2)
        rate = (0.0, 0.5)[int(draws.resets[0].failure_rate[e])]  # type: ignore[index]
        config = with_changes(config, {"experiment": {"uav": {"failure_rate": rate}}}, "test")
        single = MissionEnvironment(config, 1, "cpu", "test")
        expected = flown(planner, single, OfOne(draws, e, torch.arange(agents)))
        assert own.positions.equal(expected.positions)
        assert own.footprints.equal(expected.footprints)
        for name, values in expected.metrics.items():
            torch.testing.assert_close(own.metrics[name], values, rtol=0, atol=1e-6)
        for name, values in final_values(expected).items():
            torch.testing.assert_close(final_values(own)[name], values, rtol=1e-5, atol=1e-5)
        # What comes after the last move changes nothing.
        last = {name: values[e, readings:] for name, values in record.metrics.items()}
        assert all((values == values[:1]).all() for values in last.values())
