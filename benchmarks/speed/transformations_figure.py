"""Figure of the transformation benchmark: time per observation over UAVs at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.helpers import figures
from benchmarks.helpers.figures import BLUE, GREEN, ORANGE, PINK

_STYLES = {
    "opencv": (ORANGE, "o", "-"),
    "opencv windowed": ("#E69F00", "s", "-"),
    "opencv pool": (PINK, "^", "-"),
    "kornia cpu": (BLUE, "D", "-"),
    "kornia cpu one thread": ("#8A7300", "*", "--"),
    "kornia cuda": (GREEN, "v", "-"),
    "kornia cuda compiled": ("#56B4E9", "P", "--"),
    "kornia cuda graph": ("#000000", "X", ":"),
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the medians of all backends that ran, with bands from quartile to quartile.

    Args:
        found: as `benchmarks.speed.transformations.run` returns it.
        path: of the PNG.
    """
    figure = figures.make_figure(8, 5)
    axes = figure.subplots()
    for backend, (colour, marker, line) in _STYLES.items():
        rows = [r for r in found["rows"] if r["backend"] == backend and r["repeats"] is not None]
        if not rows:
            continue
        agents = [row["agents"] for row in rows]
        axes.plot(
            agents, [row["seconds_per_observation"] for row in rows],
            color=colour, marker=marker, linestyle=line, markersize=5, label=backend,
        )  # fmt: skip
        axes.fill_between(
            agents, [row["lower_quartile"] for row in rows],
            [row["upper_quartile"] for row in rows], color=colour, alpha=0.2, linewidth=0,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="UAVs at once")
    axes.set_ylabel("time per observation [s]: fuse what was heard, build 7 channels")
    figures.tick_at(axes, found["settings"]["agents"])
    figures.tidy(axes)
    axes.legend(frameon=False)
    figures.save(figure, path, found["machine"]["device"])
