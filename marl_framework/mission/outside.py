"""What a reward counts of the ground outside the region of interest."""

from __future__ import annotations

from torch import Tensor

from marl_framework.config.mission import RewardConfig
from marl_framework.mission.accuracy import f1_in_chunks
from marl_framework.mission.reward import Utility, with_outside
from marl_framework.mission.state import MissionState


class OutsideGains:
    """Gains in entropy and F1 of the whole belief; that in F1 passes over whole maps in every step.

    What `outside_weight` and `f1_scale` leave at 0 costs nothing.

    Args:
        config: how much they count.
        cells: of the map, R·C.
    """

    def __init__(self, config: RewardConfig, cells: int) -> None:
        self._weight = config.outside_weight
        self._f1_scale = config.f1_scale
        self._cells = cells

    def begin(self, state: MissionState) -> None:
        """Let the gain in F1 begin with the belief as it is."""
        if self._f1_scale:
            state.f1.copy_(f1_in_chunks(state.global_belief, state.truth))

    def counted(self, state: MissionState, utility: Utility) -> Utility:
        """Return the utility of a step, with ground outside the region in its relative gain."""
        if not self._weight:
            return utility
        return with_outside(utility, state, self._cells, self._weight)

    def added(self, state: MissionState, reward: Tensor) -> Tensor:
        """Return the reward of a step, with its gain in F1 added."""
        if not self._f1_scale:
            return reward
        before = state.f1.clone()
        self.begin(state)
        return reward + self._f1_scale * (state.f1 - before)
