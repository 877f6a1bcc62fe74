"""Missions and teams of pilots for the tests of flying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marl_framework.config.model import Config
from marl_framework.flying.decision import MakePlanner
from marl_framework.flying.dry_run import Wrap, make_pilots
from marl_framework.flying.knowledge import Knowledge
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.protocols import Hardware
from marl_framework.flying.simulated import MissionRadio, World
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


def world_of(config: Config, seed: int = SEED) -> World:
    """Return the world of a seed."""
    return World(MissionEnvironment(config, 1, "cpu", "test"), seed)


def team(
    config: Config,
    make: MakePlanner,
    seed: int = SEED,
    radio: type[MissionRadio] = MissionRadio,
    wrap: Wrap = lambda knowledge, hardware: hardware,
    **options: Any,
) -> tuple[World, list[Pilot], list[dict[str, Any]]]:
    """Return a world, its pilots with a kind of radio, and the record that they write."""
    record: list[dict[str, Any]] = []
    world = world_of(config, seed)

    def equip(knowledge: Knowledge, hardware: Hardware) -> Hardware:
        return wrap(knowledge, hardware._replace(radio=radio(world, knowledge.uav)))

    return world, make_pilots(world, make, record.append, wrap=equip, **options), record
