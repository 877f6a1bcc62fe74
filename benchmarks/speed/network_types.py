"""Compare the speed of convolutions and attention: `python -m benchmarks.speed.network_types`.

Both types of actor and critic have the sizes of the params file. A row times training steps, and
the team's choice of a move: observations, actor and choice, for one mission and for many.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.text import duration_text, table_text
from benchmarks.helpers.trainings import warmed_up
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import make_builder
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

TYPES = {
    "cnn": (),
    "attention": (
        "networks.actor.type=attention",
        "networks.critic.type=attention",
        "observation.heard_uavs=true",
    ),
}
"""Overrides of the params file by type."""
TEAMS = (4, 8)
MISSIONS = (1, 64)


def measure(job: Job) -> dict[str, Any]:
    """Measure all rows.

    Returns:
        `settings` and `rows`: `type`, `uavs`, `actor_parameters`, `agent_transitions_per_s` of a
        training, and `seconds_move` of the team by missions at once.
    """
    seconds, rows = job.options.seconds_per_row, []
    for uavs, (name, changes) in product(TEAMS, TYPES.items()):
        fixed = f"experiment.missions.n_agents={uavs}", "learning.update_interval=1"
        config = with_overrides(job.config, *fixed, *changes)
        rows.append({"type": name, "uavs": uavs, **_measure_one(config, job.device, seconds)})
    return {"settings": {"seconds_per_row": seconds}, "rows": rows}


def _measure_one(config: Config, device: torch.device, seconds: float) -> dict[str, Any]:
    (trainer, _), timer = warmed_up(config, device), StageTimer(device)
    make_steps = partial(trainer.make_steps, timer)
    step = harness.measure(make_steps, seconds, device, warm_up=0, least=1)
    actor = trainer.algorithm.modules["actor"]
    moves = {missions: _time_move(trainer, missions, seconds / 4) for missions in MISSIONS}
    return {
        "actor_parameters": sum(each.numel() for each in actor.parameters()),
        "agent_transitions_per_s": config.schedule.transitions_per_step / step.median,
        "seconds_move": {str(missions): median for missions, median in moves.items()},
    }


def _time_move(trainer: Trainer, missions: int, seconds: float) -> float:
    env = MissionEnvironment(trainer.config, missions, trainer.device, "validation")
    state = env.reset()
    planner = LearnedPlanner(trainer.algorithm.act, make_builder(env), env.lattice)
    act = partial(planner.act, state, env.generator)
    return harness.measure(act, seconds, trainer.device).median


def table(results: Mapping[str, Any]) -> str:
    """Return the results as text."""
    lines = [
        (
            row["type"],
            str(row["uavs"]),
            f"{row['actor_parameters']:,}",
            f"{row['agent_transitions_per_s']:,.0f}",
            *(duration_text(row["seconds_move"][str(missions)]) for missions in MISSIONS),
        )
        for row in results["rows"]
    ]
    header = ("network", "UAVs", "weights of the actor", "transitions/s")
    moves = [f"a move, {missions} mission{'s' * (missions > 1)}" for missions in MISSIONS]
    return table_text("Training and flying by type of network", (*header, *moves), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    description = "Time both types of networks."
    parser = Parser("speed.network_types", description, config="params_fast.yaml")
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
