"""What a search takes to lie on the map: the truth, or what a network predicts."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from marl_framework.device import autocast, resolve_precision
from marl_framework.mission.belief import entropy
from marl_framework.mission.state import MissionState
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.planners.search.lattice_view import LatticeView


class MapModel(Protocol):
    """Says where there is entropy to remove."""

    knows_all_plans: bool
    """Every UAV knows the plans of those that chose before it; else of those that it hears."""

    def left(self, state: MissionState) -> Tensor:
        """Return the entropy of the region of interest around each lattice position.

        For each UAV as it knows the map, [E, N, X, Y]; 1 is that of all cells around an average
        position, undecided.
        """
        ...


class TrueMap:
    """Knows the region of interest, and the belief of all readings."""

    knows_all_plans = True

    def __init__(self, view: LatticeView) -> None:
        self._view = view

    def left(self, state: MissionState) -> Tensor:
        """Return the entropy left; see `MapModel`."""
        found = self._view.sums(entropy(state.global_belief) * state.truth)
        return found.unsqueeze(1).expand(-1, state.positions.shape[1], -1, -1)


class BeliefMap:
    """Takes each UAV's own belief for what there is: p·H(p) of every cell."""

    knows_all_plans = False

    def __init__(self, view: LatticeView) -> None:
        self._view = view

    def left(self, state: MissionState) -> Tensor:
        """Return the entropy left; see `MapModel`."""
        return self._view.sums(state.beliefs * entropy(state.beliefs))


class Features(NamedTuple):
    """What the predictor sees of beliefs: p, H(p) and p·H(p)."""

    fine: Tensor
    """Means over the parts of each lattice cell, [..., 3, PARTS·X, PARTS·Y]."""
    coarse: Tensor
    """Sums over each lattice cell, [..., 3, X, Y]; 1 is all cells of an average one."""


def features(view: LatticeView, beliefs: Tensor) -> Features:
    """Return what the predictor sees of beliefs [..., R, C]."""
    open_entropy = entropy(beliefs)
    maps = torch.stack((beliefs, open_entropy, beliefs * open_entropy), dim=-3)
    return Features(view.fine(maps), view.sums(maps))


class PredictedMap:
    """Predicts from each UAV's own belief what lies where it has not looked.

    Args:
        view: the missions' lattice, divided into `PARTS`.
        network: trained.
        precision: of its forward passes; `compute.precision`.
    """

    knows_all_plans = False

    def __init__(self, view: LatticeView, network: MapPredictor, precision: str = "auto") -> None:
        self._view = view
        self._network = network
        self._precision = precision

    def left(self, state: MissionState) -> Tensor:
        """Return the entropy left; see `MapModel`."""
        return self.predict(features(self._view, state.beliefs))

    def predict(self, seen: Features) -> Tensor:
        """Return the entropy expected in the region of interest [..., X, Y]."""
        lead = seen.coarse.shape[:-3]
        device = seen.coarse.device
        with autocast(device, resolve_precision(self._precision, device)):
            logits = self._network(
                seen.fine.flatten(0, len(lead) - 1), seen.coarse.flatten(0, len(lead) - 1)
            )
        return logits.float().sigmoid().unflatten(0, lead) * seen.coarse[..., 1, :, :]
