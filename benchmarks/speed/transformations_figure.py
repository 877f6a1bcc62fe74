"""Figure of the transformation benchmark: time per observation over UAVs at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any kind of colour vision.
_STYLES = {
    "opencv": ("#D55E00", "o", "-"),
    "opencv windowed": ("#E69F00", "s", "-"),
    "opencv pool": ("#CC79A7", "^", "-"),
    "kornia cpu": ("#0072B2", "D", "-"),
    "kornia cpu one thread": ("#8A7300", "*", "--"),
    "kornia cuda": ("#009E73", "v", "-"),
    "kornia cuda compiled": ("#56B4E9", "P", "--"),
    "kornia cuda graph": ("#000000", "X", ":"),
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the medians of all backends that ran, with bands from quartile to quartile.

    Args:
        found: as `benchmarks.transformations.run` returns it.
        path: of the PNG.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
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
    numbers = found["settings"]["agents"]
    axes.set(xscale="log", yscale="log", xlabel="UAVs at once")
    axes.set_ylabel("time per observation [s]: fuse what was heard, build 7 channels")
    axes.set_xticks(numbers, [f"{n:,}" for n in numbers], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.set_title(found["machine"]["device"], fontsize=10)
    figure.savefig(path, dpi=120)
