"""Rare and large updates: `python -m benchmarks.learning.update_interval [--intervals 1,5,10,20]`.

With `learning.update_interval` K the missions of K training steps are flown before their updates
are made in one stretch. Every row flies as many missions and makes as many updates, K and
`batch_size` aside; seeds follow one another from `environment.seed` on.

Columns: share of the time collecting and updating, transitions and updates a second (of actor and
critic), utilisation as the machine reports it and as it really is (operations of the networks over
the measured peak of matrix products), memory, and the return of the validation missions after the
same number of transitions, with its interval over training seeds. One seed gives no advice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import figures, harness
from benchmarks.helpers.command_line import (
    Parser,
    parse_numbers,
    with_overrides,
    with_trainings,
)
from benchmarks.helpers.hardware import peak_flops
from benchmarks.helpers.harness import number_text
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.short_training import (
    learn_from_seeds,
    mean_of,
    number_of_seeds,
    return_errors,
    validation_columns,
)
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import resolve_precision
from marl_framework.evaluation.statistics import student_interval
from marl_framework.training.memory import check_memory

INTERVALS = "1,5,10,20"
MOST = 10**6  # of an interval or a batch size


def run(
    config: Config,
    device: torch.device,
    intervals: Sequence[int],
    batch_sizes: Sequence[int],
    seeds: int,
) -> dict[str, Any]:
    """Train with each interval and batch size.

    Args:
        config: mission, networks, and with `learning.training_steps` how long.
        device: where.
        intervals: values of `learning.update_interval`.
        batch_sizes: values of `learning.batch_size`; `batch_number` follows, so that a training
            step takes as many transitions.
        seeds: trainings of each.

    Returns:
        `settings`, `machine`, `peak_flops_per_s`, `rows`, `advice`.

    Raises:
        ConfigError: an interval cannot fit in memory, or a batch size makes no sense.
    """
    wanted = config.learning.batch_size * config.learning.batch_number
    changed = [
        with_overrides(
            config,
            f"learning.update_interval={interval}",
            f"learning.batch_size={size}",
            f"learning.batch_number={max(round(wanted / size), 1)}",
        )
        for size in batch_sizes
        for interval in intervals
    ]
    for one in changed:
        check_memory(one, device)
    machine = harness.announce_machine(device)
    peak = peak_flops(device, resolve_precision(config.compute.precision, device))
    rows = [_row(one, device, peak, seeds) for one in changed]
    return {
        "settings": {"seeds": seeds, "configuration": config_to_dict(config)},
        "machine": machine,
        "peak_flops_per_s": peak,
        "rows": rows,
        "advice": advice(rows),
    }


def _row(config: Config, device: torch.device, peak: float, seeds: int) -> dict[str, Any]:
    learning = config.learning
    name = f"K = {learning.update_interval}, batch {learning.batch_size}"
    trainings = learn_from_seeds(config, device, seeds, name)
    seconds = mean_of(trainings, lambda one: one["seconds"])
    flops = mean_of(trainings, lambda one: one["flops"] / one["seconds"])
    sm = [c["sm_activity"] for c in trainings if c["sm_activity"] is not None]

    def last(metric: str) -> float:
        return mean_of(trainings, lambda one: one["metrics"][metric][-1])

    return {
        "update_interval": learning.update_interval,
        "batch_size": learning.batch_size,
        "batch_number": learning.batch_number,
        "seconds": seconds,
        "rollout_seconds": mean_of(trainings, lambda one: one["rollout_seconds"]),
        "update_seconds": mean_of(trainings, lambda one: one["update_seconds"]),
        "transitions": trainings[0]["transitions"],
        "updates": trainings[0]["updates"],
        "transitions_per_s": trainings[0]["transitions"] / seconds,
        "updates_per_s": trainings[0]["updates"] / seconds,
        "reported_utilisation": mean_of(trainings, lambda one: one["reported"] or 0.0),
        "sm_activity": sum(sm) / len(sm) if sm else None,
        "flops_per_s": flops,
        "real_utilisation": flops / peak,
        "peak_memory_bytes": max(c["peak_memory_bytes"] for c in trainings),
        **validation_columns(trainings),
        "kl": last("kl"),
        "explained_variance": last("explained_variance"),
    }


def advice(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines on choosing K that follow from the rows, one for each batch size.

    A K is worse where the 95 % interval over seeds of its return minus that of the smallest K, seed
    by seed, lies below 0. Of the others the fastest is best, the smaller of equals (1 %). One seed
    tells nothing of the next: no advice.
    """
    if len(rows[0]["returns"]) < 2:
        return ["one seed gives no advice on K; --seeds 3 does"]
    return [
        _advice(size, [row for row in rows if row["batch_size"] == size])
        for size in dict.fromkeys(row["batch_size"] for row in rows)
    ]


def _advice(size: int, rows: Sequence[Mapping[str, Any]]) -> str:
    rows = sorted(rows, key=lambda row: row["update_interval"])
    base = best = rows[0]
    worse = [row for row in rows[1:] if _is_worse(row, base)]
    for row in rows[1:]:
        if row not in worse and row["transitions_per_s"] > 1.01 * best["transitions_per_s"]:
            best = row
    speeds = [f"{row['transitions_per_s']:,.0f}" for row in (best, base)]
    memories = [f"{row['peak_memory_bytes'] / 2**30:.2f}" for row in (best, base)]
    text = (
        f"batch {size}: K = {best['update_interval']} is the fastest whose return is not "
        f"significantly (95 %) below that of K = {base['update_interval']}: {speeds[0]} "
        f"transitions/s against {speeds[1]}, {memories[0]} GiB against {memories[1]}"
    )
    if worse:
        text += f"; a lower return at K = {', '.join(str(row['update_interval']) for row in worse)}"
    return text


def _is_worse(row: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Whether the return is significantly (95 %) below the base's, over seeds."""
    ends = student_interval(
        [ours - theirs for ours, theirs in zip(row["returns"], base["returns"], strict=True)]
    )
    return ends is not None and ends[1] < 0


def table(found: Mapping[str, Any]) -> str:
    """Return all rows as text, and the advice."""
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
        for row in found["rows"]
    ]
    header = (
        *("K", "batch", "collecting", "updating", "transitions/s", "updates/s", "reported"),
        *("SM activity", "real", "memory", "return", "KL"),
    )
    transitions = found["rows"][0]["transitions"]
    title = f"After {transitions:,} transitions; {number_of_seeds(found['settings']['seeds'])}"
    return harness.table_text(title, header, lines) + "".join(
        f"{line}.\n" for line in advice(found["rows"])
    )


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw speed, time and return against K, a line for each batch size."""
    figure = figures.make_figure(11, 3.6)
    speed, time, value = figure.subplots(1, 3)
    colours = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PINK)
    sizes = list(dict.fromkeys(row["batch_size"] for row in found["rows"]))
    for number, size in enumerate(sizes):
        rows = [row for row in found["rows"] if row["batch_size"] == size]
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
            return_errors([row["returns"] for row in rows]), capsize=3, **style,
        )  # fmt: skip
    speed.set(ylabel="transitions a second", ylim=(0, None))
    time.set(ylabel="time [s], updating (—), collecting (--)", ylim=(0, None))
    value.set(ylabel="validation return, 95 % over seeds")
    for axes in (speed, time, value):
        axes.set(xlabel="update interval K")
        figures.tidy(axes)
    value.legend(frameon=False)
    figures.save(figure, path, found["machine"]["device"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "learning.update_interval",
        "Compare update intervals at equal transitions.",
        "params_fast.yaml",
    )
    parser.add_argument("--intervals", default=INTERVALS, metavar="K,…", help=f"({INTERVALS})")
    parser.add_argument("--batch-sizes", metavar="B,…", help="(as configured)")
    parser.add_trainings(steps=40, seeds=3)
    return parser.publish(parser.parse_args(arguments), _measure, table, draw)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    intervals = parse_numbers("--intervals", options.intervals, INTERVALS, MOST)
    sizes = [config.learning.batch_size]
    if options.batch_sizes is not None:
        sizes = parse_numbers("--batch-sizes", options.batch_sizes, "240,960", MOST)
    config = with_trainings(config, options)
    return run(config, device, intervals, sizes, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
