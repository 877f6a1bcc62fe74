"""Independent PPO: each UAV learns from what it sees itself, in small steps."""

from __future__ import annotations

from collections.abc import Sequence

from marl_framework.algorithms.ppo import PPO
from marl_framework.algorithms.state_values import own_channels


class IPPO(PPO):
    """PPO of each UAV with a critic of its own observation (de Witt et al. 2020)."""

    def critic_channels(self) -> Sequence[int]:
        """Return the channels of the own observation."""
        return own_channels(self.sizes)
