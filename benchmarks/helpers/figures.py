"""Building blocks for figures of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for colour blindness.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure of the given size [inches]."""
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes, grid: bool = True) -> None:
    """Hide the top and right borders and draw a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(alpha=0.3)


def tick_at(axes: Axes, values: list[int], rotation: float = 0.0) -> None:
    """Put a tick at each value of a logarithmic x axis, and none in between."""
    axes.set_xticks(values, [f"{value:,}" for value in values], minor=False, rotation=rotation)
    axes.minorticks_off()


def draw_curves(axes: Axes, runs: Sequence[Any], colour: str, label: str, style: str = "-") -> None:
    """Draw the validation entropy against transitions: mean and range over seeds.

    Args:
        axes: axes to draw on.
        runs: one run per seed, each with its validations in `rows`.
        colour: colour of line and range.
        label: label in the legend.
        style: line style.
    """
    x = [row["transitions"] / 1000 for row in runs[0]["rows"]]
    curves = [[row["roi_entropy"] for row in run["rows"]] for run in runs]
    columns = list(zip(*curves, strict=True))
    axes.plot(x, [mean(column) for column in columns], style, color=colour, label=label)
    low, high = ([end(column) for column in columns] for end in (min, max))
    axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("transitions [thousands]")
    tidy(axes)


def save(figure: Figure, path: Path, title: str = "") -> None:
    """Write a figure as PNG.

    Args:
        figure: figure from `make_figure`.
        path: path of the PNG.
        title: title above all panels, such as the device's name.
    """
    if title:
        figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
