"""Central critic of states: COMA without the counterfactual baseline."""

from __future__ import annotations

from collections.abc import Sequence

from marl_framework.algorithms.state_values import StateValues, state_channels


class CentralV(StateValues):
    """Central-V of Foerster et al. 2018: V(s) of the team's state, no credit for single UAVs."""

    def critic_channels(self) -> Sequence[int]:
        """Return all channels but those that show actions."""
        return state_channels(self.sizes)
