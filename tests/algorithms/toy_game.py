"""A two-agent, two-action, two-step team game with the interface of a mission."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from marl_framework.config.model import NetworkSizes

PAYOFF = ((0.3, 0.0), (0.0, 1.0))
"""Reward of the joint action: both must choose 1; both choosing 0 is a worse equilibrium."""


class ToyGame:
    """Agents see their id and the time; the critic also sees the other's action."""

    sizes = NetworkSizes(
        actor_channels=2, critic_channels=3, shape=(3, 3), num_actions=2, action_channels=(2,)
    )
    n_agents = 2
    episode_length = 2

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.generator = torch.Generator().manual_seed(seed)
        self._payoff = torch.tensor(PAYOFF)
        self._t = 0

    def reset(self) -> None:
        self._t = 0

    def observe(self, out: Tensor) -> Tensor:
        ids = torch.tensor([0.5, 1.0]).view(1, 2, 1, 1, 1)
        time = torch.full((1, 2, 1, 1, 1), float(self._t))
        return out.copy_(torch.cat((ids, time), dim=2).expand_as(out))

    def choose_in_order(self, choose: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        mask = torch.ones(self.num_envs, 2, dtype=torch.bool)
        actions = torch.stack([choose(i, mask) for i in range(2)], dim=1)
        return actions, mask.unsqueeze(1).expand(-1, 2, -1)

    def critic_maps(self, actions: Tensor, out: Tensor) -> Tensor:
        return out.copy_(actions.flip(1).view(-1, 2, 1, 1, 1).expand_as(out))

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        self._t += 1
        return self._payoff[actions[:, 0], actions[:, 1]], torch.zeros(self.num_envs, 0)
