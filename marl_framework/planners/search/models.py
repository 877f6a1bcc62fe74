"""Maps that a search plans on: the truth, or a network's prediction."""

from __future__ import annotations

from torch import Tensor

from marl_framework.kernels.cells import entropy
from marl_framework.mission.state import MissionState
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.lattice_view import Features, LatticeView
from marl_framework.observations.prediction import MapPrediction
from marl_framework.planners.search.windows import Windows


class TrueMap:
    """The true region of interest, and the belief from the readings of all UAVs."""

    knows_all_plans = True
    """Whether a UAV knows the plans of all UAVs that chose earlier, not only of those it hears."""

    def __init__(self, view: LatticeView) -> None:
        self._view = view

    def left(self, state: MissionState, windows: Windows | None = None) -> Tensor:
        """Return the entropy of the region of interest around lattice positions, [E, N, U, V].

        The positions are those of the UAVs' windows, or all [X, Y] without them. The values depend
        on what each UAV knows. The unit is the entropy around an average position whose cells are
        all undecided.
        """
        left = self._view.sums(entropy(state.global_belief) * state.truth)
        left = left.unsqueeze(1).expand(-1, state.positions.shape[1], -1, -1)
        if windows is None:
            return left
        return windows.cut(left.unsqueeze(2), state.positions).squeeze(2)


class PredictedMap(MapPrediction):
    """Prediction from each UAV's own belief; see `MapPrediction`.

    `outside_weight` (0 to 1) is the weight of entropy expected outside the region of interest. With
    `doubt`, the expected entropy is that of the completed map instead, see `MapCompletion`: open
    entropy times the entropy of its predicted share.
    """

    knows_all_plans = False

    def __init__(
        self,
        view: LatticeView,
        network: MapPredictor,
        precision: str = "auto",
        outside_weight: float = 0.0,
        doubt: bool = False,
    ) -> None:
        super().__init__(view, network, precision)
        self._outside_weight, self._doubt = outside_weight, doubt

    def left(self, state: MissionState, windows: Windows | None = None) -> Tensor:
        """Return the expected entropy around lattice positions; see `TrueMap.left`."""
        seen = self._view.entropy_maps(state.beliefs)
        if windows is not None:
            fine = windows.cut(seen.fine, state.positions, PARTS)
            seen = Features(fine, windows.cut(seen.coarse, state.positions))
        open_entropy = seen.coarse[..., 1, :, :]
        if self._doubt:
            return open_entropy * entropy(self.share(seen))
        return self.predict(seen).lerp(open_entropy, self._outside_weight)
