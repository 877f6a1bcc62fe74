"""Independent actor-critic: each UAV learns from what it sees itself."""

from __future__ import annotations

from collections.abc import Sequence

from marl_framework.algorithms.state_values import StateValues, own_channels


class IAC(StateValues):
    """IAC-V of Foerster et al. 2018: no central knowledge, in flight or in learning.

    All UAVs share the weights of one actor and one critic, as in COMA.
    """

    def critic_channels(self) -> Sequence[int]:
        """Return the channels of the own observation."""
        return own_channels(self.sizes)
