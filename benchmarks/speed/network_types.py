"""What attention costs beside convolutions: `python -m benchmarks.speed.network_types`.

Both types of actor and critic have the sizes of the params file. A row times training steps, and
the team's choice of a move: observations, actor and choice, for one mission and for many.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, with_overrides
from benchmarks.helpers.harness import duration_text
from marl_framework.config.loading import config_to_dict
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
"""Overrides of the params file, by the type's name."""
TEAMS = (4, 8)
MISSIONS = (1, 64)


def run(config: Config, device: torch.device, seconds: float) -> dict[str, Any]:
    """Measure all rows.

    Args:
        config: mission, sizes of the networks, and schedule.
        device: where everything lives.
        seconds: time budget of each figure.

    Returns:
        `settings`, `machine` and `rows`: `type`, `uavs`, `actor_parameters`,
        `agent_transitions_per_s` of a training, and `seconds_move` of the team by missions at once.
    """
    machine = harness.announce_machine(device)
    rows = []
    for uavs, (name, changes) in product(TEAMS, TYPES.items()):
        team = f"experiment.missions.n_agents={uavs}"
        rows.append(
            {
                "type": name,
                "uavs": uavs,
                **_measure_one(with_overrides(config, team, *changes), device, seconds),
            }
        )
    settings = {"seconds_per_row": seconds, "configuration": config_to_dict(config)}
    return {"settings": settings, "machine": machine, "rows": rows}


def _measure_one(config: Config, device: torch.device, seconds: float) -> dict[str, Any]:
    trainer, timer = Trainer(config, device), StageTimer(device)
    step = harness.measure(lambda: trainer.training_step(timer), seconds, device, least=1)
    actor = trainer.algorithm.modules["actor"]
    moves = {missions: _time_move(trainer, missions, seconds / 4) for missions in MISSIONS}
    return {
        "actor_parameters": sum(each.numel() for each in actor.parameters()),
        "agent_transitions_per_s": config.schedule.transitions_per_step / step.median,
        "seconds_move": {str(missions): median for missions, median in moves.items()},
    }


def _time_move(trainer: Trainer, missions: int, seconds: float) -> float:
    env = MissionEnvironment(trainer.config, missions, trainer.device, "validation")
    state = env.reset(env.draw_reset())
    planner = LearnedPlanner(trainer.algorithm.act, make_builder(env), env.lattice)
    act = partial(planner.act, state, env.generator)
    return harness.measure(act, seconds, trainer.device).median


def table(found: Mapping[str, Any]) -> str:
    """Return the results as text."""
    lines = [
        (
            row["type"],
            str(row["uavs"]),
            f"{row['actor_parameters']:,}",
            f"{row['agent_transitions_per_s']:,.0f}",
            *(duration_text(row["seconds_move"][str(missions)]) for missions in MISSIONS),
        )
        for row in found["rows"]
    ]
    header = ("network", "UAVs", "weights of the actor", "transitions/s")
    moves = [f"a move, {missions} mission{'s' * (missions > 1)}" for missions in MISSIONS]
    return harness.table_text("Training and flying by type of network", (*header, *moves), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "speed.network_types", "Time both types of networks.", config="params_fast.yaml"
    )
    return parser.publish(parser.parse_args(arguments), _measure, table)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    return run(config, device, options.seconds_per_row)


if __name__ == "__main__":
    sys.exit(main())
