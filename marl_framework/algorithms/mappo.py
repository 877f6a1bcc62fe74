"""Multi-agent PPO: a central critic of states."""

from __future__ import annotations

from marl_framework.algorithms.ppo import PPO


class MAPPO(PPO):
    """PPO with a central critic (Yu et al. 2022).

    The critic sees the UAV's observation and the team's state, as the paper recommends.
    """
