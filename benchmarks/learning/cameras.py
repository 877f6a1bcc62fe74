"""Complete maps of cameras that err more than assumed: `python -m benchmarks.learning.cameras`.

Flies a trained team in the missions of the params file (default: params.yaml), over each terrain
and with each number of misread cells, and compares completed maps whose caution is learned with
those that trust the readings (`evaluation.caution` 1), in the same missions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.text import table_text
from benchmarks.helpers.trainings import Cache
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation import comparison
from marl_framework.evaluation.flight import COMPLETED, evaluate
from marl_framework.evaluation.report import LABELS, mission_blocks
from marl_framework.evaluation.statistics import paired_difference
from marl_framework.evaluation.suite import SIGNS
from marl_framework.evaluation.suite_results import verdict
from marl_framework.planners.team import load_team, with_team

TERRAINS = {
    "split": ["sensor.simulation.kinds=[split]"],
    "landscape": ["sensor.simulation.kinds=[landscape]"],
    "elevation": [
        "sensor.simulation.kinds=[raster]",
        "sensor.simulation.raster.path=data:elevation",
    ],
}
ERRORS = (0.0, 0.05, 0.1)
"""Additions to both error rates."""


def measure(job: Job) -> dict[str, Any]:
    """Fly the team over all terrains with all cameras, twice each.

    Returns:
        `runs`: `variant` (terrain), `seed`, `error`, mean `caution`, and for each of `COMPLETED`
        the means `trusting` and `learned`, and their `difference` (see `paired_difference`).
    """
    options, team = job.options, load_team(job.options.checkpoint)
    flown = {"missions": options.missions, "seed": options.seed}
    cache = Cache(job, {t: {"checkpoint": options.checkpoint, **flown} for t in TERRAINS}, **flown)
    for terrain, error in product(options.terrains, ERRORS):
        run: dict[str, Any] = {"variant": terrain, "error": error}
        if cache.has(**run):
            continue
        rates = [f"sensor.reality.{rate}={error}" for rate in ("miss", "false_alarm")]
        trusting, learned = (
            _fly(job, team, *TERRAINS[terrain], *rates, f"evaluation.caution={caution}")
            for caution in ("1", "null")
        )
        run["caution"] = float(learned.metrics["learned_caution"].mean())
        for metric in COMPLETED:
            before, after = (each.metrics[metric][:, -1] for each in (trusting, learned))
            change = paired_difference(after, before, mission_blocks(learned))
            means = {"trusting": float(before.mean()), "learned": float(after.mean())}
            run[metric] = {**means, "difference": change}
        cache.add(seed=options.seed, **run)
    return cache.results


def _fly(job: Job, team: Any, *overrides: str) -> Any:
    config = with_team(with_overrides(job.config, *overrides), team)
    missions, seed = job.options.missions, job.options.seed
    ready = comparison.prepare(config, job.device, [LEARNED], missions, seed, team)
    env, planner = ready.environments[LEARNED], ready.planners[LEARNED]
    return evaluate(env, planner, missions, seed, curves=False, completion=ready.completion)


def table(results: Mapping[str, Any]) -> str:
    """Return the caution, and each metric's means with a verdict, of all runs as text."""
    lines = []
    for run in results["runs"]:
        cells = []
        for metric in COMPLETED:
            means = f"{run[metric]['trusting']:.3f} → {run[metric]['learned']:.3f}"
            cells.append(f"{means} {verdict(run[metric]['difference']['interval'], SIGNS[metric])}")
        name = f"{run['variant']}, {run['error']:.0%} more cells misread"
        lines.append((name, f"{run['caution']:.2f}", *cells))
    title = "{missions} missions per row, seed {seed}".format_map(results["settings"])
    labels = (LABELS[metric] for metric in COMPLETED.values())
    return table_text(title, ("", "learned caution", *labels), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.cameras", "Complete maps of cameras that err more than assumed.")
    parser.add_flights()
    parser.add_names("--terrains", TERRAINS)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
