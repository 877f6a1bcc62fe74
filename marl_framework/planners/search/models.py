"""What a search takes to lie on the map: the truth, or what a network predicts."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from marl_framework.mission.belief import entropy
from marl_framework.mission.state import MissionState
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import MapPrediction


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


class PredictedMap(MapPrediction):
    """Predicts from each UAV's own belief what lies where it has not looked."""

    knows_all_plans = False

    def left(self, state: MissionState) -> Tensor:
        """Return the entropy left; see `MapModel`."""
        return self.of(state.beliefs)
