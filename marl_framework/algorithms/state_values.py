"""Critics of states, V(s), and what algorithms with one share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor, nn

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import mean_of
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.model import Config
from marl_framework.networks.registry import make_critic


class SomeChannels(nn.Module):
    """A network that sees some channels of its input.

    Args:
        network: made for so many channels.
        channels: their indices, rising.
    """

    def __init__(self, network: nn.Module, channels: Sequence[int]) -> None:
        super().__init__()
        self.network = network
        self.independent_rows = getattr(network, "independent_rows", False)
        # Stretches of neighbouring channels: slices copy nothing and need no tensor of indices.
        runs = groupby(enumerate(channels), lambda pair: pair[1] - pair[0])
        stretches = [[channel for _, channel in run] for _, run in runs]
        self._slices = [slice(stretch[0], stretch[-1] + 1) for stretch in stretches]

    def forward(self, maps: Tensor) -> Tensor:
        """Return the network's output of [B, C, X, Y]."""
        seen = [maps[:, part] for part in self._slices]
        output: Tensor = self.network(seen[0] if len(seen) == 1 else torch.cat(seen, dim=1))
        return output


class StateValues(ActorCritic):
    """An actor and a critic V(s) with TD(λ) targets of a target critic.

    The advantage is a TD error, r + γ·V̄(s') - V(s), or with `learning.advantage: return` the
    TD(λ) return less V(s).
    """

    central = True
    """Whether the critic sees the team's state beside what the UAV sees itself."""

    def critic_channels(self) -> Sequence[int]:
        """Return which channels of the critic's input the critic sees: none that show actions."""
        sizes = self.sizes
        if not self.central:
            return range(sizes.actor_channels)
        return [c for c in range(sizes.critic_channels) if c not in sizes.action_channels]

    def new_critic(self, config: Config) -> nn.Module:
        """Return a critic from [B, C_c, X, Y] to V(s) [B, 1]."""
        channels = self.critic_channels()
        sizes = replace(self.sizes, critic_channels=len(channels), num_actions=1)
        return SomeChannels(make_critic(config.networks, config.compute, sizes), channels)

    def transitions(self, rollout: Rollout) -> Transitions:
        """Return all transitions of a rollout with TD(λ) and one-step targets."""
        values = self.evaluate(rollout).view(rollout.actions.shape)
        targets = self.returns(rollout, values)
        return Transitions.of(rollout, targets, one_step=self.returns(rollout, values, 0.0))

    def credited(self, part: Transitions) -> Tensor | None:
        """Return r + γ·V̄(s'), or the TD(λ) returns."""
        return part.targets if self.learning.advantage == "return" else part.one_step

    def action_values(self, outputs: Tensor) -> Tensor:
        """Return V(s) for each action: whatever the policy, their mean is V(s)."""
        return outputs.expand(-1, self.sizes.num_actions).contiguous()

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return the mean squared error of V(s) [B, 1] against the targets."""
        return mean_of((outputs.squeeze(1) - part.targets).square(), part.weights)
