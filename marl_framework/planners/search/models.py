"""The map that a search plans on: the truth, or the prediction of a network."""

from __future__ import annotations

from torch import Tensor

from marl_framework.kernels.cells import entropy
from marl_framework.mission.state import MissionState
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import MapPrediction


class TrueMap:
    """The true region of interest and the belief from all readings."""

    knows_all_plans = True
    """Whether a UAV knows the plans of all UAVs that chose before it, or of those it hears."""

    def __init__(self, view: LatticeView) -> None:
        self._view = view

    def left(self, state: MissionState) -> Tensor:
        """Return the entropy of the region of interest around each lattice position, [E, N, X, Y].

        For each UAV as it knows the map; 1 is that of an average position's undecided cells.
        """
        left = self._view.sums(entropy(state.global_belief) * state.truth)
        return left.unsqueeze(1).expand(-1, state.positions.shape[1], -1, -1)


class PredictedMap(MapPrediction):
    """A prediction from each UAV's own belief; see `MapPrediction`.

    Entropy that is expected outside the region of interest counts by `outside_weight`, 0 to 1.
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
        """Return the entropy left; see `TrueMap`."""
        seen = self._view.entropy_maps(state.beliefs)
        return self.predict(seen).lerp(seen.coarse[..., 1, :, :], self._outside_weight)
