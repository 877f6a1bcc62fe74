"""Measure how the cost of flying grows with missions, UAVs, map cells and lattice positions.

    python -m benchmarks.speed.scaling [--quick] [--out FILE.json]

One size varies at a time; the others are those of the configuration, with few missions at once. A
row is the time of one step of all missions at once, as in `benchmarks.speed.rollout`, with random
actions: medians over whole episodes. The exponent b of seconds = a·size^b is fitted to the larger
half of the sizes, where constant costs matter least; it should be at most 1 for missions and cells,
and at most 2 for UAVs. On the lattice the UAVs fly only at the lowest altitude, so that a finer
lattice does not change their footprints.

The JSON also has the minimum work of a joint step, counted from flown missions. The figure has the
name of the JSON.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, linear_regression
from typing import Any

import torch

from benchmarks.helpers import figures, harness
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.least_work import count_work
from benchmarks.helpers.text import duration_text, number_text, quartiles_text, table_text
from benchmarks.speed.rollout import Flight
from marl_framework.config.model import Config

MISSIONS = 8  # at once, where their number does not vary


@dataclass(frozen=True)
class Axis:
    """One size that varies."""

    name: str
    label: str
    values: tuple[int, ...]
    """Missions, UAVs, pixels per side, or lattice positions per side."""
    quick: tuple[int, ...]
    most: float | None
    """Largest exponent that is right; None = no claim."""
    setting: Callable[[Config, int], list[str]]
    """Returns the overrides of a value."""
    size: Callable[[Config], int]
    """Returns the size that the cost is drawn against."""


def _cells(config: Config) -> int:
    return config.geometry.map_shape[0] * config.geometry.map_shape[1]


def _positions(config: Config) -> int:
    return config.geometry.lattice_shape[0] * config.geometry.lattice_shape[1]


def _pixels(_: Config, side: int) -> list[str]:
    return [f"sensor.pixel.number_{axis}={side}" for axis in "xy"]


def _lattice(config: Config, side: int) -> list[str]:
    """One altitude, and `side` positions along x."""
    lowest = config.experiment.constraints.min_altitude
    return [
        f"experiment.constraints.spacing={config.environment.x_dim / (side - 1)!r}",
        f"experiment.constraints.max_altitude={lowest!r}",
        f"experiment.baselines.coverage.altitude={lowest!r}",
    ]


AXES = (
    Axis(
        "missions", "missions at once", (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 8), 1.0,
        lambda _, number: [f"environment.num_envs={number}"],
        lambda config: config.environment.num_envs,
    ),
    Axis(
        "uavs", "UAVs of a mission", (1, 2, 4, 8, 12, 16), (1, 2, 4), 2.0,
        lambda _, number: [f"experiment.missions.n_agents={number}"],
        lambda config: config.missions.most_agents,
    ),
    Axis("cells", "cells of the map", (12, 24, 40, 57, 80), (12, 24), 1.0, _pixels, _cells),
    Axis("positions", "lattice positions", (6, 11, 16, 21), (6, 11), None, _lattice, _positions),
)  # fmt: skip


def fit_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return b of seconds = a·size^b: least squares of logarithms over the larger half.

    The larger half are the last n // 2 + 1 of n sizes, at least two.

    Args:
        sizes: rising.
        seconds: above 0, one for each size.
    """
    half = len(sizes) // 2 + 1
    x, y = ([math.log(v) for v in values[-half:]] for values in (sizes, seconds))
    return linear_regression(x, y).slope


def measure_axis(
    config: Config, axis: Axis, device: torch.device, quick: bool, seconds: float
) -> dict[str, Any]:
    """Vary one size.

    Returns:
        `axis`, `label`, `rows`, `exponent` and `exponent_at_most`.

    Raises:
        ConfigError: a size does not fit the configuration.
    """
    rows = []
    for value in axis.quick if quick else axis.values:
        changed = with_overrides(
            config,
            f"environment.num_envs={MISSIONS}",
            "learning.symmetries=false",  # not every lattice has them
            *axis.setting(config, value),
        )
        flight = Flight(changed, changed.environment.num_envs, device)
        step = harness.measure(flight.episode, seconds, device).per(changed.missions.episode_length)
        rows.append(
            {
                "value": value,
                "size": axis.size(changed),
                "seconds_per_step": step.median,
                **step.columns("episodes"),
                "seconds_per_joint_step": step.median / changed.environment.num_envs,
            }
        )
        text = f"{rows[-1]['size']:,} {axis.label}: {duration_text(step.median)} a step"
        print(text, file=sys.stderr, flush=True)
    exponent = fit_exponent([r["size"] for r in rows], [r["seconds_per_step"] for r in rows])
    return {
        "axis": axis.name,
        "label": axis.label,
        "rows": rows,
        "exponent": exponent,
        "exponent_at_most": axis.most,
    }


def measure(job: Job) -> dict[str, Any]:
    """Vary all sizes.

    Returns:
        `settings`, `axes` (see `measure_axis`) and `must_do` (see `count_work`).
    """
    quick, seconds = job.options.quick, job.options.seconds_per_row
    return {
        "settings": {
            "quick": quick,
            "missions": MISSIONS,
            "seconds_per_row": seconds,
        },
        "must_do": count_work(job.config),
        "axes": [measure_axis(job.config, axis, job.device, quick, seconds) for axis in AXES],
    }


# Table and figure -------------------------------------------------------------------------


def table(results: Mapping[str, Any]) -> str:
    """Return all sizes as text."""
    lines = []
    for axis in results["axes"]:
        for place, row in enumerate(axis["rows"]):
            last = place == len(axis["rows"]) - 1
            lines.append(
                (
                    axis["label"],
                    f"{row['size']:,}",
                    duration_text(row["seconds_per_step"]),
                    quartiles_text(row),
                    duration_text(row["seconds_per_joint_step"]),
                    number_text(axis["exponent"] if last else None, ".2f"),
                    number_text(axis["exponent_at_most"] if last else None, ".0f"),
                )
            )
    header = ("varied", "size", "a step", "quartiles", "a joint step", "exponent", "at most")
    return table_text("Time of a step of all missions at once", header, lines)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw a panel for each size: medians, quartiles and the fitted line."""
    figure = figures.make_figure(9, 7)
    for axes, axis in zip(figure.subplots(2, 2).flat, results["axes"], strict=True):
        rows = axis["rows"]
        sizes = [row["size"] for row in rows]
        medians = [row["seconds_per_step"] for row in rows]
        lower = [m - row["lower_quartile"] for m, row in zip(medians, rows, strict=True)]
        upper = [row["upper_quartile"] - m for m, row in zip(medians, rows, strict=True)]
        axes.errorbar(
            sizes, medians, (lower, upper), fmt="o", color=figures.BLUE, capsize=3, label="measured"
        )
        fitted = sizes[-(len(sizes) // 2 + 1) :]
        centre_x, centre_y = map(geometric_mean, (fitted, medians[-len(fitted) :]))
        line = [centre_y * (size / centre_x) ** axis["exponent"] for size in fitted]
        axes.plot(fitted, line, color=figures.ORANGE, label=f"size$^{{{axis['exponent']:.2f}}}$")
        axes.set(xscale="log", yscale="log", xlabel=axis["label"], ylabel="time of a step [s]")
        figures.tick_at(axes, sizes, rotation=30)
        figures.tidy(axes)
        axes.legend(frameon=False)
    figures.save(figure, path, results["machine"]["device"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("speed.scaling", "Time steps against missions, UAVs, map and lattice.")
    parser.add_argument("--quick", action="store_true", help="a few small sizes")
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
