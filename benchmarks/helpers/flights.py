"""Flights of one planner in the missions of a benchmark."""

from __future__ import annotations

from benchmarks.helpers.command_line import Job
from marl_framework.config.model import Config
from marl_framework.evaluation.comparison import batch_size
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint, with_team


def fly(job: Job, config: Config, planner: str, team: Checkpoint | None) -> FlightRecord:
    """Fly `--missions` missions from `--seed` on; `team` flies as `learned`, None for planners."""
    missions, seed = job.options.missions, job.options.seed
    config = config if team is None else with_team(config, team)
    env = MissionEnvironment(config, batch_size(config, missions), job.device, "test")
    return evaluate(env, make_planner(planner, env, team), missions, seed, curves=False)
