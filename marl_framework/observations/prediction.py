"""Predictions of the map from beliefs, by a trained network."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.device import autocast, resolve_precision
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.lattice_view import LatticeView


class Features(NamedTuple):
    """Inputs of the predictor: p, H(p) and p·H(p) of beliefs."""

    fine: Tensor
    """Means over the parts of each lattice cell, [..., 3, PARTS·X, PARTS·Y]."""
    coarse: Tensor
    """Sums over each lattice cell, [..., 3, X, Y]; 1 stands for all cells of an average one."""


def features(view: LatticeView, beliefs: Tensor) -> Features:
    """Return the predictor's inputs for beliefs [..., R, C]."""
    return Features(*view.entropy_maps(beliefs))


class MapPrediction:
    """Predicts the entropy in the region of interest from beliefs.

    Args:
        view: the missions' lattice, divided into `PARTS`.
        network: trained.
        precision: of its forward passes; `compute.precision`.
    """

    def __init__(self, view: LatticeView, network: MapPredictor, precision: str = "auto") -> None:
        self._view = view
        self._network = network
        self._precision = precision

    @torch.no_grad()
    def of(self, beliefs: Tensor) -> Tensor:
        """Return the entropy expected around each lattice position, [..., X, Y] of [..., R, C]."""
        return self.predict(features(self._view, beliefs))

    def highest(self) -> float:
        """Return the largest possible prediction: all cells of a position are undecided."""
        return float(self._view.sizes().max())

    def predict(self, seen: Features) -> Tensor:
        """Return the entropy expected in the region of interest [..., X, Y]."""
        lead = seen.coarse.shape[:-3]
        device = seen.coarse.device
        with autocast(device, resolve_precision(self._precision, device)):
            logits = self._network(
                seen.fine.flatten(0, len(lead) - 1), seen.coarse.flatten(0, len(lead) - 1)
            )
        return logits.float().sigmoid().unflatten(0, lead) * seen.coarse[..., 1, :, :]
