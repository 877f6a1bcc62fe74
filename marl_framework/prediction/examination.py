"""Examines a map predictor: pictures of its predictions, and how reliable they are."""

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

BINS = 10  # of the predicted share, of equal width
_MIN_SHARE = 1e-3  # of all open entropy; bins with less are noise and not drawn


class Reliability:
    """Compares predicted and realised shares of the open entropy, in bins of the predicted one.

    Each bin has a number of lattice `cells`, their `open_entropy` (1 is that of all cells around an
    average position), and the parts of it `predicted` and `realised` in the region of interest,
    [BINS] float64 each.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(4, BINS, dtype=torch.float64, device=device)
        self.cells, self.open_entropy, self.predicted, self.realised = self._sums

    def add(self, open_entropy: Tensor, predicted: Tensor, realised: Tensor) -> None:
        """Add lattice cells; all arguments have the same shape."""
        share = predicted / open_entropy.clamp(min=1e-9)  # positions may have no cells
        number = (share * BINS).long().clamp(0, BINS - 1).flatten()
        inside = (number == torch.arange(BINS, device=number.device).unsqueeze(1)).double()
        values = torch.stack((torch.ones_like(predicted), open_entropy, predicted, realised))
        self._sums += values.flatten(1).double() @ inside.mT

    def error(self) -> float:
        """Return the expected calibration error: the mean |predicted − realised share| of the bins.

        It is weighted by the open entropy (Guo et al. 2017, with entropy in place of counts).
        """
        return float((self.predicted - self.realised).abs().sum() / self.open_entropy.sum())


class Picture(NamedTuple):
    """Belief, prediction and truth of one UAV during a mission."""

    title: str
    belief: Tensor
    """Own belief, [R, C]."""
    predicted: Tensor
    """Mean entropy expected in the region of interest around each position [bit], [R, C]."""
    realised: Tensor
    """Mean entropy that is truly there [bit], [R, C]."""
    truth: Tensor
    """Region of interest, [R, C] bool."""


@torch.no_grad()
def examine(
    worlds: Sequence[MissionEnvironment], view: LatticeView, model: PredictedMap, planner: Planner
) -> tuple[list[Picture], Reliability]:
    """Fly validation missions; return pictures, and the reliability of the predictions.

    A picture of each world shows the first UAV of the first mission after half of the moves.
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
            seen, target = Samples.of(view, state).batch(slice(None), 0)
            predicted = model.predict(seen)
            reliability.add(seen.coarse[:, 1], predicted, target)
            if move == world.episode_length // 2:
                belief, truth = state.beliefs[0, 0].clone(), state.truth[0].clone()
                shown, true = (view.spread(maps[0]) for maps in (predicted, target))
                pictures.append(Picture(title, belief, shown, true, truth))
    return pictures, reliability


def predictions_figure(pictures: Sequence[Picture], config: Config, path: Path) -> None:
    """Draw belief, prediction and truth side by side, a row for each picture."""
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
    """Draw realised against predicted shares in bins, and the number of cells in each bin."""
    figure = figures.new_figure((6.0, 6.4))
    shares, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    enough = reliability.open_entropy > _MIN_SHARE * reliability.open_entropy.sum()
    predicted, realised = (
        (part / reliability.open_entropy)[enough].tolist()
        for part in (reliability.predicted, reliability.realised)
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
