"""Fly with lost and late messages: `python -m benchmarks.learning.radio`.

Flies the missions of the params file (default: params.yaml) with each share of lost messages and
each delay. Losses come in bursts of ten messages. All runs have the same terrains and starts. Each
run is written when it ends, and a run that the JSON already has is not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.helpers import figures
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.flights import fly
from benchmarks.helpers.text import table_text
from benchmarks.helpers.trainings import Cache
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation.report import LABELS, METRICS
from marl_framework.evaluation.statistics import worst_tenth
from marl_framework.planners.team import load_team

POLICIES = {"student": LEARNED, "search": "search", "information_gain": "information_gain"}
"""Planner of each policy."""
LOSSES = (0.0, 0.3, 0.6, 0.9)
DELAYS = (0, 1, 2, 4)
VALUES = {"mean": "", "worst_tenth": ", worst tenth"}


def measure(job: Job) -> dict[str, Any]:
    """Fly all policies with all losses and delays.

    Returns:
        `runs`: `variant` (policy), `seed`, `loss` (share), `delay` [moves], and for each of
        `METRICS` its `mean` and `worst_tenth`.
    """
    options, student = job.options, load_team(job.options.checkpoint)
    flown = {"missions": options.missions, "seed": options.seed}
    variants = {policy: {"checkpoint": options.checkpoint, **flown} for policy in POLICIES}
    cache = Cache(job, variants, **flown)
    for policy, loss, delay in product(options.policies, LOSSES, DELAYS):
        run: dict[str, Any] = {"variant": policy, "loss": loss, "delay": delay}
        if cache.has(**run):
            continue
        keys = f"failure_rate={loss}", "failure_burst=10", f"delay={delay}"
        config = with_overrides(job.config, *(f"experiment.uav.{key}" for key in keys))
        team = student if policy == "student" else None
        record = fly(job, config, POLICIES[policy], team)
        for metric, sign in METRICS.items():
            finals = record.metrics[metric][:, -1]
            worst = worst_tenth(finals[None], sign)["mean"]
            run[metric] = {"mean": float(finals.mean()), "worst_tenth": worst}
        cache.add(seed=options.seed, **run)
    return cache.results


def grid(results: Mapping[str, Any], policy: str, metric: str, value: str) -> np.ndarray:
    """Return a value of a policy for each loss and delay, [len(LOSSES), len(DELAYS)], or NaN."""
    runs = [run for run in results["runs"] if run["variant"] == policy]
    found = {(run["loss"], run["delay"]): run[metric][value] for run in runs}
    return np.array([[found.get((loss, delay), np.nan) for delay in DELAYS] for loss in LOSSES])


def table(results: Mapping[str, Any]) -> str:
    """Return all runs as text."""
    columns, lines = list(product(METRICS, VALUES)), []
    for run in results["runs"]:
        name = f"{run['variant']}, {run['loss']:.0%} lost, {run['delay']} moves late"
        lines.append((name, *(f"{run[metric][value]:.3f}" for metric, value in columns)))
    title = "{missions} missions per run, seed {seed}".format_map(results["settings"])
    return table_text(title, ("", *(LABELS[m] + VALUES[v] for m, v in columns)), lines)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw a heat map of each policy and value; all maps of a column share its colours."""
    policies = list(dict.fromkeys(run["variant"] for run in results["runs"]))
    figure = figures.make_figure(11, 2.7 * len(policies) + 0.4)
    panels = figure.subplots(len(policies), 4, sharex=True, sharey=True, squeeze=False)
    for column, (metric, value) in enumerate(product(METRICS, VALUES)):
        maps = [grid(results, policy, metric, value) for policy in policies]
        colours = "viridis" if METRICS[metric] > 0 else "viridis_r"  # yellow is better
        low, high = np.nanmin(maps), np.nanmax(maps)
        for axes, policy, values in zip(panels[:, column], policies, maps, strict=True):
            axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto")
            for (row, late), number in np.ndenumerate(values):
                bright = METRICS[metric] * (2 * number - low - high) > 0
                place = {"ha": "center", "va": "center", "color": "k" if bright else "w"}
                axes.text(late, row, "" if np.isnan(number) else f"{number:.2f}", **place)
            axes.set_xticks(range(len(DELAYS)), map(str, DELAYS))
            axes.set_yticks(range(len(LOSSES)), [f"{loss:.0%}" for loss in LOSSES])
            axes.set_title(f"{policy.replace('_', ' ')}\n{LABELS[metric]}{VALUES[value]}", size=9)
    figure.supxlabel("delay of each message [moves]")
    figure.supylabel("lost messages")
    figures.save(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.radio", "Fly with lost and late messages.")
    parser.add_flights()
    parser.add_names("--policies", POLICIES)
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
