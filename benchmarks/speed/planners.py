"""Compare the planning time of planners: `python -m benchmarks.speed.planners [--checkpoint RUN]`.

Every planner flies whole missions, one alone and many at once. A row is the time of a move of the
whole team, as the mean over the moves of a mission, which differ much, and the median over flights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.harness import Timing
from benchmarks.helpers.text import duration_text, table_text
from marl_framework.config.loading import config_to_dict
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation.flight import fly
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.protocol import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import find_checkpoint, mission_config

NAMES = ("information_gain", "coverage", "search", "oracle")
MISSIONS = "1,50"
_LEAST = 3  # flights of a row


def measure(job: Job) -> dict[str, Any]:
    """Measure all rows.

    Returns:
        `settings` and `rows`: `planner`, `missions` at once, and `seconds_move`, the planning time
        of a move of one mission's team [s], with quartiles over flights.
    """
    options, config, checkpoint = job.options, job.config, None
    if options.checkpoint is not None:
        checkpoint = find_checkpoint(options.checkpoint)
        config = mission_config(options.config, options.overrides, checkpoint)
    rows = []
    for missions in options.missions:
        environment = MissionEnvironment(config, missions, job.device, "test")
        for name in (*NAMES, LEARNED) if checkpoint else NAMES:
            planner = make_planner(name, environment, checkpoint)
            spent = _time_flights(environment, planner, options.seconds_per_row).per(missions)
            row = {"planner": name, "missions": missions, "seconds_move": spent.median}
            rows.append({**row, **spent.columns("flights")})
    settings = {"seconds_per_row": options.seconds_per_row, "configuration": config_to_dict(config)}
    return {"settings": settings, "rows": rows}


def _time_flights(environment: MissionEnvironment, planner: Planner, seconds: float) -> Timing:
    """Return the planning time of a move of all missions [s]; the first flight warms up."""

    def flight() -> list[float]:
        return fly(environment, planner, environment.generator, keep_maps=0).planning_seconds

    flight()
    samples, end = flight(), perf_counter() + seconds
    while len(samples) < _LEAST or perf_counter() < end:
        samples += flight()
    lower, median, upper = harness.quartiles(samples)
    return Timing(median, lower, upper, len(samples))


def table(results: Mapping[str, Any]) -> str:
    """Return the results as text."""
    lines = [
        (
            row["planner"],
            f"{row['missions']:,}",
            duration_text(row["seconds_move"]),
            f"{duration_text(row['lower_quartile'])} to {duration_text(row['upper_quartile'])}",
            str(row["flights"]),
        )
        for row in results["rows"]
    ]
    header = ("planner", "missions", "a move of the team", "quartiles", "flights")
    return table_text("Planning time of a mission", header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("speed.planners", "Compare the planning time of planners.")
    parser.add_argument("--checkpoint", metavar="RUN", help="trained team to fly, too")
    parser.add_numbers("--missions", MISSIONS, "numbers of missions at once", most=2**14)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
