"""Examine a map predictor: example predictions, and calibration of the predicted shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.evaluation import figures
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.protocol import Planner
from marl_framework.planners.search.models import PredictedMap
from marl_framework.prediction.samples import Samples, fly

BINS = 10  # number of equal bins of the predicted share
_MIN_SHARE = 1e-3  # of the total open entropy; bins with less are noisy and not drawn


class Reliability:
    """Compares predicted and realised ROI shares of the open entropy, binned by predicted share.

    Sums per bin, [BINS] float64: number of lattice `cells`; their `open_entropy`, normalised by the
    mean number of map cells per lattice position; entropy `predicted` in the region of interest;
    entropy `realised` there.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(4, BINS, dtype=torch.float64, device=device)
        self.cells, self.open_entropy, self.predicted, self.realised = self._sums

    def add(self, open_entropy: Tensor, predicted: Tensor, realised: Tensor) -> None:
        """Add lattice cells; all arguments have the same shape."""
        share = predicted / open_entropy.clamp(min=1e-9)  # 0 at positions without map cells
        bins = (share * BINS).long().clamp(0, BINS - 1).flatten()
        in_bin = (bins == torch.arange(BINS, device=bins.device).unsqueeze(1)).double()
        values = torch.stack((torch.ones_like(predicted), open_entropy, predicted, realised))
        self._sums += values.flatten(1).double() @ in_bin.mT

    def error(self) -> float:
        """Return the expected calibration error: the mean of |predicted − realised share|.

        The mean over bins is weighted by open entropy (Guo et al. 2017, where weights are counts).
        """
        return float((self.predicted - self.realised).abs().sum() / self.open_entropy.sum())


class Picture(NamedTuple):
    """Belief, prediction and truth of one UAV during a mission."""

    title: str
    belief: Tensor
    """Belief of the UAV, [R, C]."""
    predicted: Tensor
    """Predicted mean ROI entropy around each position [bit], [R, C]."""
    realised: Tensor
    """True mean ROI entropy around each position [bit], [R, C]."""
    truth: Tensor
    """Region of interest, [R, C] bool."""


@torch.no_grad()
def examine(
    worlds: Sequence[MissionEnvironment], view: LatticeView, model: PredictedMap, planner: Planner
) -> tuple[list[Picture], Reliability]:
    """Fly validation missions; return pictures, and the reliability of the predictions.

    The picture of each world shows the first UAV of the first mission after half of the moves.
    """
    device = worlds[0].device
    generator = torch.Generator(device).manual_seed(0)
    reliability = Reliability(device)
    pictures: list[Picture] = []
    for world in worlds:
        terrain = world.config.sensor.simulation
        title = ", ".join(terrain.kinds)
        if "random_field" in terrain.kinds:
            title += f" {terrain.cluster_radius:g}"
        states = fly(world, lambda state: planner.act(state, generator).actions)
        for move, state in enumerate(states):
            features, target = Samples.of(view, state).batch(slice(None), 0)
            predicted = model.predict(features)
            reliability.add(features.coarse[:, 1], predicted, target)
            if move == world.episode_length // 2:
                belief, truth = state.beliefs[0, 0].clone(), state.truth[0].clone()
                prediction, realised = (view.spread(maps[0]) for maps in (predicted, target))
                pictures.append(Picture(title, belief, prediction, realised, truth))
    return pictures, reliability


def predictions_figure(pictures: Sequence[Picture], config: Config, path: Path) -> None:
    """Draw belief, prediction and truth side by side, one row per picture."""
    figure = figures.new_figure((13.0, 3.1 * len(pictures)))
    rows = figure.subplots(len(pictures), 4, squeeze=False)
    for row, picture in zip(rows, pictures, strict=True):
        belief = figures.draw_map(row[0], picture.belief, config, figures.BELIEF_COLOURS)
        for axes, values in ((row[1], picture.predicted), (row[2], picture.realised)):
            expected = figures.draw_map(axes, values, config, "magma")
        figures.draw_map(row[3], picture.truth, config, figures.TERRAIN_COLOURS)
        figure.colorbar(belief, ax=row[0], shrink=0.8, label="P(region of interest)")
        figure.colorbar(expected, ax=row[2], shrink=0.8, label="bits per cell")
        row[0].set_ylabel(f"{picture.title}\ny [m]")
    titles = ("own belief", "predicted: entropy in the ROI", "truth: entropy in the ROI", "ROI")
    for axes, title in zip(rows[0], titles, strict=True):
        axes.set_title(title)
    for axes in rows[-1]:
        axes.set_xlabel("x [m]")
    figure.savefig(path, dpi=figures.DPI)


def reliability_figure(reliability: Reliability, path: Path) -> None:
    """Draw realised against predicted shares, and the number of lattice cells in each bin."""
    figure = figures.new_figure((6.0, 6.4))
    shares, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    drawn = reliability.open_entropy > _MIN_SHARE * reliability.open_entropy.sum()
    predicted, realised = (
        (sums / reliability.open_entropy)[drawn].tolist()
        for sums in (reliability.predicted, reliability.realised)
    )
    shares.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="calibrated")
    shares.plot(predicted, realised, "o-", color="#0072B2", label="predictor")
    shares.set(ylabel="realised share", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    shares.grid(alpha=0.3)
    shares.legend(frameon=False)
    middles = [(number + 0.5) / BINS for number in range(BINS)]
    counts.bar(middles, reliability.cells.tolist(), width=0.9 / BINS, color="#56B4E9")
    counts.set(xlabel="predicted share of the open entropy in the ROI", ylabel="lattice cells")
    figure.suptitle(
        f"{int(reliability.cells.sum())} lattice cells of validation missions\n"
        f"expected calibration error {reliability.error():.3f}"
    )
    figure.savefig(path, dpi=figures.DPI)
