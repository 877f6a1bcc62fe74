"""Measure how long a pilot thinks: `python -m benchmarks.speed.pilot [--checkpoint RUN]`.

Teams of pilots fly a mission on simulated vehicles. A row has the time that one pilot takes on one
core to fuse what it has heard, and to decide: medians and largest values over UAVs and moves.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.harness import CPU, peak_memory
from benchmarks.helpers.text import duration_text, table_text
from marl_framework.config.loading import config_to_dict
from marl_framework.config.parts import LEARNED
from marl_framework.flying.dry_run import check_supported, make_pilots
from marl_framework.flying.pilot import Phase
from marl_framework.flying.simulated import World
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.protocol import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import load_team, mission_config

NAMES = (LEARNED, "search", "information_gain")
_STEPS = {Phase.HEARING: "fuse", Phase.DECIDING: "decide"}


def measure(job: Job) -> dict[str, Any]:
    """Measure all rows.

    Returns:
        `rows`: `planner`, `step`, `median` and `largest` [s], and the number of `moves`;
        `peak_memory`: of the process [bytes].
    """
    options = job.options
    checkpoint = load_team(options.checkpoint)
    config = mission_config(options.config, options.overrides, checkpoint)
    check_supported(config)
    torch.set_num_threads(1)
    environment, rows = MissionEnvironment(config, 1, "cpu", "test"), []
    for name in NAMES:

        def make(own: MissionEnvironment, name: str = name) -> Planner:
            return make_planner(name, own, checkpoint)

        for step, spent in _time_flight(environment, make).items():
            median, largest = float(np.median(spent)), max(spent)
            rows.append(
                {
                    "planner": name,
                    "step": step,
                    "median": median,
                    "largest": largest,
                    "moves": len(spent),
                }
            )
    settings = {"configuration": config_to_dict(config)}
    return {"rows": rows, "peak_memory": peak_memory(CPU), "settings": settings}


def _time_flight(environment: MissionEnvironment, make: Any) -> dict[str, list[float]]:
    """Return the times of each step [s]; those of the first move, which warm up, are left out."""
    spent: dict[str, list[float]] = defaultdict(list)
    world = World(environment, 0)
    pilots = make_pilots(world, make)
    while not all(pilot.over for pilot in pilots):
        busy = False
        for pilot in pilots:
            phase, start = pilot.phase, perf_counter()
            moved = pilot.advance()
            if moved and phase in _STEPS and pilot.move > 0:
                spent[_STEPS[phase]].append(perf_counter() - start)
            busy |= moved
        if not busy:
            world.clock.advance(1.0)
    return spent


def table(results: Mapping[str, Any]) -> str:
    """Return the results as text."""
    lines = [
        (row["planner"], row["step"], *map(duration_text, (row["median"], row["largest"])))
        for row in results["rows"]
    ]
    title = f"Time of a pilot on one core; peak memory {results['peak_memory'] / 2**20:.0f} MiB"
    return table_text(title, ("planner", "step", "median", "largest"), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("speed.pilot", "Measure how long a pilot thinks.")
    default = "pretrained:student"
    parser.add_argument("--checkpoint", default=default, metavar="RUN", help="trained team")
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
