"""PNG figures of a predictor: what it expects beside what there is, and how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.evaluation.figures import (
    BELIEF_COLOURS,
    DPI,
    TERRAIN_COLOURS,
    draw_map,
    new_figure,
)
from marl_framework.prediction.calibration import BINS, Reliability

_LEAST_SHARE = 1e-3  # of all open entropy; bins with less are noise and stay undrawn


@dataclass
class Picture:
    """One UAV on the way: what it believes, what is predicted from it, and what there is."""

    title: str
    belief: Tensor
    """[R, C]."""
    predicted: Tensor
    """Entropy expected in the region of interest, a mean over the cells nearest to each lattice
    position [bit], [R, C]."""
    realised: Tensor
    """The same of the entropy that truly lies there, [R, C]."""
    truth: Tensor
    """[R, C] bool."""


def predictions_figure(pictures: Sequence[Picture], config: Config, path: Path) -> None:
    """Draw belief, prediction and truth side by side, a row for each picture."""
    figure = new_figure((13.0, 3.1 * len(pictures)))
    rows = figure.subplots(len(pictures), 4, squeeze=False)
    for row, picture in zip(rows, pictures, strict=True):
        belief = draw_map(row[0], picture.belief, config, BELIEF_COLOURS)
        for axes, values in ((row[1], picture.predicted), (row[2], picture.realised)):
            expected = draw_map(axes, values, config, "magma")
        draw_map(row[3], picture.truth, config, TERRAIN_COLOURS)
        figure.colorbar(belief, ax=row[0], shrink=0.8, label="P(region of interest)")
        figure.colorbar(expected, ax=row[2], shrink=0.8, label="bits per cell")
        row[0].set_ylabel(f"{picture.title}\ny [m]")
    titles = ("own belief", "predicted: entropy in the ROI", "truth: entropy in the ROI", "ROI")
    for axes, title in zip(rows[0], titles, strict=True):
        axes.set_title(title)
    for axes in rows[-1]:
        axes.set_xlabel("x [m]")
    figure.savefig(path, dpi=DPI)


def reliability_figure(found: Reliability, path: Path) -> None:
    """Draw realised against predicted shares in bins, and how much lies in each."""
    figure = new_figure((6.0, 6.4))
    shares, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _draw_shares(shares, found)
    edges = [(number + 0.5) / BINS for number in range(BINS)]
    counts.bar(edges, found.cells.tolist(), width=0.9 / BINS, color="#56B4E9")
    counts.set(xlabel="predicted share of the open entropy in the ROI", ylabel="lattice cells")
    figure.suptitle(
        f"{int(found.cells.sum())} lattice cells of missions not learned from\n"
        f"expected calibration error {found.error():.3f}"
    )
    figure.savefig(path, dpi=DPI)


def _draw_shares(axes: Axes, found: Reliability) -> None:
    enough = found.open_entropy > _LEAST_SHARE * found.open_entropy.sum()
    predicted, realised = (share[enough].tolist() for share in found.shares())
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="calibrated")
    axes.plot(predicted, realised, "o-", color="#0072B2", label="predictor")
    limits: dict[str, Any] = {"xlim": (0, 1), "ylim": (0, 1), "aspect": "equal"}
    axes.set(ylabel="realised share", **limits)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
