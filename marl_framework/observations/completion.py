"""Completed maps: beliefs with a map predictor's expectation as their prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels.cells import clamp_probability
from marl_framework.mission.accuracy import chunks
from marl_framework.mission.lattice import Lattice
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import MapPrediction, placed_predictor

MARGIN = 1e-3
"""Predicted shares are clamped to [margin, 1 - margin]: no prediction is certain."""


class MapCompletion:
    """Completes beliefs by Bayes' rule, with predicted shares in place of `mapping.prior`.

    A predicted share ρ is the probability that an undecided cell around a lattice position lies in
    the region of interest. Completed log-odds of a cell are κ·(logit p - logit prior) + logit ρ,
    with logit ρ interpolated linearly between positions, and the caution κ. Predictions are in
    float32.
    """

    def __init__(self, config: Config, lattice: Lattice, network: MapPredictor) -> None:
        self._view = LatticeView(config, lattice, PARTS)
        self._prediction = MapPrediction(self._view, network, "float32")
        prior = config.mapping.prior
        self._prior, self._caution = math.log(prior / (1 - prior)), config.evaluation.caution
        if self._caution is None and config.sensor.model.adapt:
            self._caution = 1.0  # beliefs count it already
        device, spacing = lattice.offsets.device, config.experiment.constraints.spacing
        self._weights = [
            _interpolation(positions, cells, size / spacing).to(device)
            for positions, cells, size in zip(
                lattice.shape, config.geometry.map_shape, config.geometry.cell_size, strict=False
            )
        ]

    @torch.no_grad()
    def __call__(
        self, beliefs: Tensor, caution: Tensor | None = None, inside: Tensor | None = None
    ) -> Tensor:
        """Return the completed maps of beliefs, [E, R, C].

        `caution` [E] is as `mapping.caution`, see `CameraNoise.caution`; None for 1. If
        `evaluation.caution` is set, it is used instead. `inside` marks the cells of a field,
        [E, R, C] bool; the others become 0.
        """
        if caution is None or self._caution is not None:
            caution = beliefs.new_full((len(beliefs),), self._caution or 1.0)
        power = caution[:, None, None].expand(beliefs.shape)
        parts = chunks(beliefs, power, *(() if inside is None else (inside,)))
        return torch.cat([self._complete(*part) for part in parts])

    def _complete(self, beliefs: Tensor, caution: Tensor, inside: Tensor | None = None) -> Tensor:
        shares = self._prediction.share(self._view.entropy_maps(beliefs)).logit(MARGIN)
        expected = self._weights[0].mT @ shares @ self._weights[1]
        read = clamp_probability(beliefs).logit() - self._prior
        completed = (caution * read + expected).sigmoid()
        return completed if inside is None else completed * inside


def make_completion(config: Config, lattice: Lattice) -> MapCompletion | None:
    """Create the completion with `evaluation.predictor`; None if that is null.

    Raises ConfigError if the predictor cannot be read.
    """
    name = config.evaluation.predictor
    if name is None:
        return None
    network = placed_predictor(name, "evaluation.predictor", config, lattice)
    return MapCompletion(config, lattice, network)


def _interpolation(positions: int, cells: int, size: float) -> Tensor:
    """Return the weight of each lattice position in each cell, [positions, cells].

    `size` is that of a cell relative to the spacing.
    """
    middles = ((torch.arange(cells, dtype=torch.float64) + 0.5) * size).clamp(max=positions - 1)
    distances = (middles - torch.arange(positions).unsqueeze(1)).abs()
    return (1 - distances).clamp(min=0).float()
