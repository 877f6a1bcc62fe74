"""Independent PPO: each UAV learns from its own observation."""

from __future__ import annotations

from marl_framework.algorithms.ppo import PPO


class IPPO(PPO):
    """PPO of each UAV with a critic of its own observation (de Witt et al. 2020)."""

    central = False
