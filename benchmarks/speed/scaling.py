"""How the cost of flying grows: with missions, UAVs, cells of the map and lattice positions.

    python -m benchmarks.speed.scaling [--quick] [--out FILE.json]

One size is varied at a time, the others are those of the configuration; missions at once, where
they do not vary, are few. A row is the time of one step of all missions at once, with all that
`benchmarks.speed.rollout` has in it, random actions, medians over whole episodes. The exponent b of
seconds = a·size^b is fitted to the larger half of the sizes, where constant costs matter least; at
most 1 is right for missions and cells, at most 2 for UAVs. On the lattice the UAVs fly at the
lowest altitude alone, so that a finer lattice does not change what they see.

The JSON also has what a joint step must do at the configuration's own sizes, counted from flown
missions. The figure beside it has the JSON's name.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import figures, harness
from benchmarks.helpers.command_line import Parser, with_overrides
from benchmarks.helpers.harness import duration_text, number_text, quartiles_text
from benchmarks.helpers.least_work import count_work
from benchmarks.speed.rollout import Flight
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config

MISSIONS = 8  # at once, where their number does not vary


@dataclass(frozen=True)
class Axis:
    """One size that varies."""

    name: str
    label: str
    values: tuple[int, ...]
    """What is set: missions, UAVs, cells of a footprint's side, lattice positions a side."""
    quick: tuple[int, ...]
    most: float | None
    """The exponent that the cost may have; None = no claim."""
    setting: Callable[[Config, int], list[str]]
    """The overrides of a value."""
    size: Callable[[Config], int]
    """What the cost is drawn against."""


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

    The larger half of n sizes are the last n // 2 + 1, so that there are two at least.

    Args:
        sizes: rising.
        seconds: above 0, one for each size.
    """
    if len(sizes) < 2:
        raise ValueError("two sizes at least make an exponent")
    half = len(sizes) // 2 + 1
    x, y = ([math.log(v) for v in values[-half:]] for values in (sizes, seconds))
    mean_x, mean_y = sum(x) / half, sum(y) / half
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def measure_axis(
    config: Config, axis: Axis, device: torch.device, quick: bool, seconds: float
) -> dict[str, Any]:
    """Vary one size.

    Returns:
        `axis`, `label`, `rows`, `exponent` and `exponent_at_most`.

    Raises:
        ConfigError: a size does not suit the configuration.
    """
    rows = []
    for value in axis.quick if quick else axis.values:
        changed = with_overrides(
            config,
            f"environment.num_envs={MISSIONS}",
            "learning.symmetries=false",  # nothing is learned, and not every lattice has them
            *axis.setting(config, value),
        )
        flight = Flight(changed, changed.environment.num_envs, device)
        step = harness.measure(flight.episode, seconds, device).per(changed.missions.episode_length)
        rows.append(
            {
                "value": value,
                "size": axis.size(changed),
                "seconds_per_step": step.median,
                "lower_quartile": step.lower,
                "upper_quartile": step.upper,
                "episodes": step.repeats,
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


def run(config: Config, device: torch.device, quick: bool, seconds: float) -> dict[str, Any]:
    """Vary all sizes.

    Args:
        config: the missions.
        device: where they are flown.
        quick: a few small sizes.
        seconds: time budget of each size.

    Returns:
        `settings`, `machine`, `axes` (see `measure_axis`) and `must_do` (see `count_work`).
    """
    return {
        "settings": {
            "quick": quick,
            "missions": MISSIONS,
            "seconds_per_row": seconds,
            "step": "one move of all UAVs of all missions at once; medians over whole episodes",
            "exponent": "least squares of logarithms over the last n // 2 + 1 of n sizes",
            "configuration": config_to_dict(config),
        },
        "machine": harness.announce_machine(device),
        "must_do": count_work(config),
        "axes": [measure_axis(config, axis, device, quick, seconds) for axis in AXES],
    }


# Table and figure -------------------------------------------------------------------------


def table(found: Mapping[str, Any]) -> str:
    """Return all sizes as text."""
    lines = []
    for axis in found["axes"]:
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
    return harness.table_text("Time of a step of all missions at once", header, lines)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw a panel for each size: medians, quartiles and the fitted line.

    Args:
        found: as `run` returns it.
        path: of the PNG.
    """
    figure = figures.make_figure(9, 7)
    for axes, axis in zip(figure.subplots(2, 2).flat, found["axes"], strict=True):
        rows = axis["rows"]
        sizes = [row["size"] for row in rows]
        medians = [row["seconds_per_step"] for row in rows]
        lower = [m - row["lower_quartile"] for m, row in zip(medians, rows, strict=True)]
        upper = [row["upper_quartile"] - m for m, row in zip(medians, rows, strict=True)]
        axes.errorbar(
            sizes, medians, (lower, upper), fmt="o", color=figures.BLUE, capsize=3, label="measured"
        )
        fitted = sizes[-(len(sizes) // 2 + 1) :]
        centre_x, centre_y = (
            math.exp(sum(map(math.log, values)) / len(fitted))
            for values in (fitted, medians[-len(fitted) :])
        )
        line = [centre_y * (size / centre_x) ** axis["exponent"] for size in fitted]
        axes.plot(fitted, line, color=figures.ORANGE, label=f"size$^{{{axis['exponent']:.2f}}}$")
        axes.set(xscale="log", yscale="log", xlabel=axis["label"], ylabel="time of a step [s]")
        figures.tick_at(axes, sizes, rotation=30)
        figures.tidy(axes)
        axes.legend(frameon=False)
    figures.save(figure, path, found["machine"]["device"])


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser("speed.scaling", "Time steps against missions, UAVs, map and lattice.")
    parser.add_argument("--quick", action="store_true", help="a few small sizes")
    return parser.publish(parser.parse_args(arguments), _measure, table, draw)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    return run(config, device, options.quick, options.seconds_per_row)


if __name__ == "__main__":
    sys.exit(main())
