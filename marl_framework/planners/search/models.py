"""What a search takes to lie on the map: the truth, or what a network predicts."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from marl_framework.mission.belief import entropy
from marl_framework.mission.state import MissionState
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import MapPrediction, features


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
    """Predicts from each UAV's own belief what lies where it has not looked.

    Args:
        view: the missions' lattice, divided into `PARTS`.
        network: trained.
        precision: of its forward passes; `compute.precision`.
        outside_weight: of the entropy expected outside the region of interest, 0 to 1.
    """

    knows_all_plans = False

    def __init__(
        self,
        view: LatticeView,
        network: MapPredictor,
        precision: str = "auto",
        outside_weight: float = 0.0,
    ) -> None:
        super().__init__(view, network, precision)
        self._outside_weight = outside_weight

    def left(self, state: MissionState) -> Tensor:
        """Return the entropy left; see `MapModel`."""
        seen = features(self._view, state.beliefs)
        return self.predict(seen).lerp(seen.coarse[..., 1, :, :], self._outside_weight)
