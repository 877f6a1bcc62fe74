"""The figures beside the results."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size [inches]."""
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes, grid: bool = True) -> None:
    """Leave out what says nothing, and draw a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(alpha=0.3)


def tick_at(axes: Axes, values: list[int], rotation: float = 0.0) -> None:
    """Put a tick at each value of a logarithmic x axis, and none between them."""
    axes.set_xticks(values, [f"{value:,}" for value in values], minor=False, rotation=rotation)
    axes.minorticks_off()


def save(figure: Figure, path: Path, title: str = "") -> None:
    """Write a PNG.

    Args:
        figure: from `make_figure`.
        path: of the PNG.
        title: above all panels, such as the device's name.
    """
    if title:
        figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
