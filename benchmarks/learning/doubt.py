"""Fly with doubts about the camera: `python -m benchmarks.learning.doubt`.

Flies the missions of the params file (default: params.yaml) with each number of misread cells.
Compares UAVs that trust `sensor.model` with UAVs that know the real error rate of the lowest
altitude (`mapping.caution`), and with UAVs that learn it (`sensor.model.adapt`), in the same
missions. Metrics are those of beliefs; the student's are averaged over the teams of `--checkpoint`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.flights import fly
from benchmarks.helpers.text import table_text
from benchmarks.helpers.trainings import Cache
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation.report import LABELS
from marl_framework.evaluation.statistics import interval
from marl_framework.evaluation.suite import SIGNS
from marl_framework.evaluation.suite_results import verdict
from marl_framework.mission.sensor import error_rates
from marl_framework.planners.team import Checkpoint, load_team

POLICIES = {
    "student": LEARNED,
    **{name: name for name in ("search", "information_gain", "coverage")},
}
"""Planner of each policy."""
ERRORS = (0.0, 0.05, 0.1)
"""Additions to both error rates."""
METRICS = "f1", "ece", "brier"
DOUBTS = {"known": "mapping.caution={caution}", "learned": "sensor.model.adapt=true"}


def measure(job: Job) -> dict[str, Any]:
    """Fly all policies with all cameras.

    Returns:
        `runs`: `variant` (policy), `seed`, `error`, and for each of `METRICS` the mean `trusting`,
        and under `known` and `learned` the `mean` and the 95 % `interval` of the difference.
    """
    options = job.options
    teams = [load_team(name) for name in options.checkpoint.split(",")]
    flown = {"missions": options.missions, "seed": options.seed}
    variants = {policy: {"checkpoint": options.checkpoint, **flown} for policy in POLICIES}
    cache = Cache(job, variants, **flown)
    for policy, error in product(options.policies, ERRORS):
        run: dict[str, Any] = {"variant": policy, "error": error}
        if cache.has(**run):
            continue
        flyers = teams if policy == "student" else [None]
        rates = [f"sensor.reality.{rate}={error}" for rate in ("miss", "false_alarm")]
        trusting = _fly(job, policy, flyers, rates)
        run |= {metric: {"trusting": float(trusting[metric].mean())} for metric in METRICS}
        doubts = {"caution": _caution(job, error)}
        for doubt, override in DOUBTS.items():
            found = _fly(job, policy, flyers, [*rates, override.format_map(doubts)])
            for metric in METRICS:
                change = interval(found[metric] - trusting[metric])
                run[metric][doubt] = {"mean": float(found[metric].mean()), "interval": change}
        cache.add(seed=options.seed, **run)
    return cache.results


def _caution(job: Job, error: float) -> float:
    """Return the `mapping.caution` of a camera that misreads more cells than the model says."""
    model = error_rates(job.config)[0].mean().item()
    real = model + error
    return math.log((1 - real) / real) / math.log((1 - model) / model)


def _fly(
    job: Job, policy: str, teams: Sequence[Checkpoint | None], overrides: Sequence[str]
) -> dict[str, Tensor]:
    """Return each of `METRICS` of all missions, [S, E]."""
    config = with_overrides(job.config, *overrides)
    records = [fly(job, config, POLICIES[policy], team) for team in teams]
    return {name: torch.stack([r.metrics[name][:, -1] for r in records]) for name in METRICS}


def table(results: Mapping[str, Any]) -> str:
    """Return each metric of trusting UAVs, and those of the others with a verdict, as text."""
    lines = []
    for run in results["runs"]:
        for doubt in DOUBTS:
            cells = []
            for metric in METRICS:
                before, after = run[metric]["trusting"], run[metric][doubt]
                sign = verdict(after["interval"], SIGNS[metric])
                cells.append(f"{before:.3f} → {after['mean']:.3f} {sign}")
            name = f"{run['variant']}, {run['error']:.0%} more cells misread"
            lines.append((name, doubt, *cells))
    title = "{missions} missions per row, seed {seed}".format_map(results["settings"])
    return table_text(title, ("", "error rate", *(LABELS[metric] for metric in METRICS)), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.doubt", "Fly with doubts about the camera.")
    parser.add_flights()
    parser.add_names("--policies", POLICIES)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
