"""Missions and teams of pilots for the tests of flying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marl_framework.config.model import Config
from marl_framework.flying.decision import MakePlanner
from marl_framework.flying.dry_run import Equip, make_pilots, make_world
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.protocols import Hardware, Log
from marl_framework.flying.simulated import InProcessRadio, World, simulated_hardware
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.protocol import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import load_team
from tests.small import small_config
from tests.teams import save_predictor, save_team

SEED = 12
NOMINAL = {"fused", "decided", "leave", "landed"}
"""Events of a flight in which nothing is wrong."""


def config_of(folder: Path, **changes: Any) -> Config:
    """A short mission whose planner `search` has an untrained predictor."""
    predictor = save_predictor(folder / "predictor.pt", small_config())
    config = small_config(**{"budget": 7, "pixels": (20, 20), **changes})
    search = config.experiment.baselines.search.model_copy(update={"predictor": str(predictor)})
    baselines = config.experiment.baselines.model_copy(update={"search": search})
    experiment = config.experiment.model_copy(update={"baselines": baselines})
    return config.model_copy(update={"experiment": experiment})


def maker(policy: str, config: Config, folder: Path, greedy: bool = True) -> MakePlanner:
    """Return a function that makes a planner, as the command does."""
    team = load_team(str(save_team(folder / "team.pt", config)))

    def make(environment: MissionEnvironment) -> Planner:
        return make_planner(policy, environment, team, greedy)

    return make


def team(
    config: Config, make: MakePlanner, seed: int = SEED, **options: Any
) -> tuple[World, list[Pilot], list[dict[str, Any]]]:
    """Return a world, its pilots and the record that they write."""
    record: list[dict[str, Any]] = []
    world = make_world(MissionEnvironment(config, 1, "cpu", "test"), seed)
    return world, make_pilots(world, make, seed, record.append, **options), record


def equipped_with(make_radio: type[InProcessRadio]) -> Equip:
    """Return simulated hardware with another radio."""

    def equip(world: World, uav: int, log: Log) -> Hardware:
        return simulated_hardware(world, uav, log)._replace(radio=make_radio(world, uav))

    return equip
