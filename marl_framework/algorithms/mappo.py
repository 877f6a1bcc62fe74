"""Multi-agent PPO: small steps, judged by a central critic of states."""

from __future__ import annotations

from collections.abc import Sequence

from marl_framework.algorithms.ppo import PPO
from marl_framework.algorithms.state_values import state_channels


class MAPPO(PPO):
    """PPO with a central critic (Yu et al. 2022).

    The critic sees the UAV's observation beside the team's state, as the paper advises.
    """

    def critic_channels(self) -> Sequence[int]:
        """Return all channels but those that show actions."""
        return state_channels(self.sizes)
