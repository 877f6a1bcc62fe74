"""Compare update intervals: `python -m benchmarks.learning.update_interval [--intervals 1,5]`.

With `learning.update_interval` K the missions of K training steps are flown before all of their
updates are made. Rows differ only in K and `batch_size`: all have the same numbers of missions and
updates. Seeds count up from `environment.seed`.

Columns: shares of the time for collecting and updating; transitions and updates (of actor and
critic) per second; utilisation as the machine reports it, and as the networks' operations over the
measured peak of matrix products; memory; and the return of the validation missions with its
interval over training seeds. One seed gives no advice.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers import figures
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.harness import peak_flops
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.text import number_text, table_text
from benchmarks.helpers.trainings import (
    Run,
    add_trainings,
    after_transitions,
    measure_seeds,
    return_errors,
    validation_columns,
)
from marl_framework.config.model import Config
from marl_framework.device import resolve_precision
from marl_framework.evaluation.statistics import student_interval
from marl_framework.training.memory import check_memory

INTERVALS = "1,5,10,20"
MOST = 10**6  # of an interval or a batch size


def measure(job: Job) -> dict[str, Any]:
    """Train with each interval and batch size.

    `batch_number` follows the batch size, so that all training steps have as many transitions.

    Returns:
        `settings`, `peak_flops_per_s`, `rows`, `advice`.

    Raises:
        ConfigError: an interval does not fit in memory, or a batch size is invalid.
    """
    config, device, seeds = job.config, job.device, job.options.seeds
    wanted = config.learning.batch_size * config.learning.batch_number
    changed = [
        with_overrides(
            config,
            f"learning.update_interval={interval}",
            f"learning.batch_size={size}",
            f"learning.batch_number={max(round(wanted / size), 1)}",
        )
        for size in job.options.batch_sizes or [config.learning.batch_size]
        for interval in job.options.intervals
    ]
    for one in changed:
        check_memory(one, device)
    peak = peak_flops(device, resolve_precision(config.compute.precision, device))
    rows = [_row(one, device, peak, seeds) for one in changed]
    return {
        "settings": {"seeds": seeds},
        "peak_flops_per_s": peak,
        "rows": rows,
        "advice": advice(rows),
    }


def _row(config: Config, device: torch.device, peak: float, seeds: int) -> Run:
    learning = config.learning
    name = f"K = {learning.update_interval}, batch {learning.batch_size}"
    trainings = measure_seeds(config, device, seeds, name)
    first = trainings[0]
    seconds = mean(one["seconds"] for one in trainings)
    flops = mean(one["flops"] / one["seconds"] for one in trainings)
    sm = [one["sm_activity"] for one in trainings if one["sm_activity"] is not None]
    return {
        "update_interval": learning.update_interval,
        "batch_size": learning.batch_size,
        "batch_number": learning.batch_number,
        "seconds": seconds,
        "rollout_seconds": mean(one["rollout_seconds"] for one in trainings),
        "update_seconds": mean(one["update_seconds"] for one in trainings),
        "transitions": first["transitions"],
        "updates": first["updates"],
        "transitions_per_s": first["transitions"] / seconds,
        "updates_per_s": first["updates"] / seconds,
        "reported_utilisation": mean(one["reported"] or 0.0 for one in trainings),
        "sm_activity": mean(sm) if sm else None,
        "flops_per_s": flops,
        "real_utilisation": flops / peak,
        "peak_memory_bytes": max(one["peak_memory_bytes"] for one in trainings),
        **validation_columns(trainings),
        **{
            metric: mean(one["metrics"][metric][-1] for one in trainings)
            for metric in ("kl", "explained_variance")
        },
    }


def advice(rows: Sequence[Run]) -> list[str]:
    """Return a line on the choice of K for each batch size; none for a single seed."""
    if len(rows[0]["returns"]) < 2:
        return ["one seed gives no advice on K; try --seeds 3"]
    return [
        _advice(size, [row for row in rows if row["batch_size"] == size])
        for size in dict.fromkeys(row["batch_size"] for row in rows)
    ]


def _advice(size: int, rows: Sequence[Run]) -> str:
    best, worse = choose(rows)
    pair = (best, min(rows, key=lambda row: row["update_interval"]))
    speeds = [f"{row['transitions_per_s']:,.0f}" for row in pair]
    memories = [f"{row['peak_memory_bytes'] / 2**30:.2f}" for row in pair]
    text = (
        f"batch {size}: K = {best['update_interval']} is the fastest whose return is not "
        f"significantly (95 %) below that of K = {pair[1]['update_interval']}: {speeds[0]} "
        f"transitions/s against {speeds[1]}, {memories[0]} GiB against {memories[1]}"
    )
    if worse:
        text += f"; a lower return at K = {', '.join(str(row['update_interval']) for row in worse)}"
    return text


def choose(rows: Sequence[Run]) -> tuple[Run, list[Run]]:
    """Return the best row of a batch size, and those with a worse return.

    A K is worse if the return minus that of the smallest K, seed by seed, has a 95 % interval
    below 0. Of the others the fastest is best; within 1 % the smaller one.
    """
    base, *others = sorted(rows, key=lambda row: row["update_interval"])
    worse = [row for row in others if _is_worse(row, base)]
    best = base
    for row in others:
        if row not in worse and row["transitions_per_s"] > 1.01 * best["transitions_per_s"]:
            best = row
    return best, worse


def _is_worse(row: Run, base: Run) -> bool:
    """Return whether the return is significantly (95 %) below that of another row."""
    ends = student_interval(
        [ours - theirs for ours, theirs in zip(row["returns"], base["returns"], strict=True)]
    )
    return ends is not None and ends[1] < 0


def table(results: dict[str, Any]) -> str:
    """Return all rows and the advice as text."""
    lines = [
        (
            str(row["update_interval"]),
            f"{row['batch_size']:,}",
            f"{row['rollout_seconds'] / row['seconds']:.0%}",
            f"{row['update_seconds'] / row['seconds']:.0%}",
            f"{row['transitions_per_s']:,.0f}",
            f"{row['updates_per_s']:,.1f}",
            f"{row['reported_utilisation']:.0%}",
            number_text(row["sm_activity"], ".0%"),
            f"{row['real_utilisation']:.0%}",
            f"{row['peak_memory_bytes'] / 2**30:.2f} GiB",
            seeds_text(row["returns"]),
            f"{row['kl']:.4f}",
        )
        for row in results["rows"]
    ]
    header = (
        *("K", "batch", "collecting", "updating", "transitions/s", "updates/s", "reported"),
        *("SM activity", "real", "memory", "return", "KL"),
    )
    printed = table_text(after_transitions(results), header, lines)
    return printed + "".join(f"{line}.\n" for line in advice(results["rows"]))


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw speed, time and return against K, with a line for each batch size."""
    figure = figures.make_figure(11, 3.6)
    speed, time, value = figure.subplots(1, 3)
    colours = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PINK)
    sizes = list(dict.fromkeys(row["batch_size"] for row in results["rows"]))
    for number, size in enumerate(sizes):
        rows = [row for row in results["rows"] if row["batch_size"] == size]
        intervals = [row["update_interval"] for row in rows]
        style = {"marker": "o", "color": colours[number % len(colours)], "label": f"batch {size}"}
        speed.plot(intervals, [row["transitions_per_s"] for row in rows], **style)
        time.plot(intervals, [row["update_seconds"] for row in rows], **style)
        time.plot(
            intervals, [row["rollout_seconds"] for row in rows], **{**style, "label": None},
            linestyle="--",
        )  # fmt: skip
        value.errorbar(
            intervals, [row["return"] for row in rows],
            return_errors(rows), capsize=3, **style,
        )  # fmt: skip
    speed.set(ylabel="transitions a second", ylim=(0, None))
    time.set(ylabel="time [s], updating (—), collecting (--)", ylim=(0, None))
    value.set(ylabel="validation return, 95 % over seeds")
    for axes in (speed, time, value):
        axes.set(xlabel="update interval K")
        figures.tidy(axes)
    value.legend(frameon=False)
    figures.save(figure, path, results["machine"]["device"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser(
        "learning.update_interval",
        "Compare update intervals at equal transitions.",
        "params_fast.yaml",
    )
    parser.add_numbers("--intervals", INTERVALS, "values of K", MOST)
    parser.add_numbers("--batch-sizes", None, "batch sizes", MOST)
    add_trainings(parser)
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
