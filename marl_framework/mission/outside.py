"""What a reward counts of the ground outside the region of interest."""

from __future__ import annotations

from torch import Tensor

from marl_framework.config.mission import RewardConfig
from marl_framework.mission.accuracy import f1_in_chunks, total_entropy
from marl_framework.mission.reward import Utility, relative_with_outside
from marl_framework.mission.state import MissionState


class OutsideGains:
    """Gains in entropy and F1 of the whole belief; each passes over whole maps in every step.

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
        """Let the gains begin with the belief as it is."""
        if self._weight:
            state.entropy.copy_(total_entropy(state.global_belief))
        if self._f1_scale:
            state.f1.copy_(f1_in_chunks(state.global_belief, state.truth))

    def counted(self, state: MissionState, utility: Utility) -> Utility:
        """Return the utility of a step, with ground outside the region in its relative gain."""
        if not self._weight:
            return utility
        removed = -_replace(state.entropy, total_entropy(state.global_belief))
        roi = state.weighted_entropy, utility.absolute.double() * self._cells
        everywhere = state.entropy, removed
        return utility._replace(relative=relative_with_outside(roi, everywhere, self._weight))

    def added(self, state: MissionState, reward: Tensor) -> Tensor:
        """Return the reward of a step, with its gain in F1 added."""
        if not self._f1_scale:
            return reward
        gained = _replace(state.f1, f1_in_chunks(state.global_belief, state.truth))
        return reward + self._f1_scale * gained


def _replace(kept: Tensor, now: Tensor) -> Tensor:
    """Write `now` over `kept`; return the difference."""
    change = now - kept
    kept.copy_(now)
    return change
