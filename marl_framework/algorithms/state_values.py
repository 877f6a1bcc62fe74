"""Algorithms with a state-value critic V(s)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.ranks import mean_of
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.model import Config, NetworkSizes
from marl_framework.networks.registry import make_critic


class SomeChannels(nn.Module):
    """Network that receives [B, channels, X, Y] without the (ascending) `hidden` channels."""

    def __init__(self, network: nn.Module, channels: int, hidden: Iterable[int]) -> None:
        super().__init__()
        self.network = network
        edges = pairwise((-1, *hidden, channels))
        self._slices = [slice(start + 1, end) for start, end in edges if end > start + 1]

    def forward(self, maps: Tensor) -> Tensor:
        """Run the network on the visible channels."""
        seen = [maps[:, part] for part in self._slices]
        output: Tensor = self.network(seen[0] if len(seen) == 1 else torch.cat(seen, dim=1))
        return output


def make_partial_critic(
    config: Config, sizes: NetworkSizes, hidden: Sequence[int], outputs: int
) -> SomeChannels:
    """Build a critic from maps [B, C_c, X, Y], without `hidden` channels, to [B, outputs]."""
    channels = sizes.critic_channels
    sizes = replace(sizes, critic_channels=channels - len(hidden), num_actions=outputs)
    return SomeChannels(make_critic(config.networks, config.compute, sizes), channels, hidden)


class StateValues(ActorCritic):
    """Base class: an actor, and a critic V(s) with TD(λ) targets from a target critic.

    The advantage is r + γ·V̄(s') - V(s), or G - V(s) with `learning.advantage: return`.
    """

    central = True
    """Whether the critic sees the team's state in addition to the UAV's observation."""

    def new_critic(self, config: Config) -> nn.Module:
        """Build a critic from maps [B, C_c, X, Y] to V(s) [B, 1]; it sees no action channels."""
        channels = self.sizes.critic_channels
        own = range(self.sizes.actor_channels, channels)
        hidden: Sequence[int] = self.sizes.action_channels if self.central else own
        return make_partial_critic(config, self.sizes, hidden, outputs=1)

    def transitions(self, rollout: Rollout) -> Transitions:
        """Return all transitions of a rollout with TD(λ) and one-step targets."""
        values = self.evaluate(rollout).view(rollout.actions.shape)
        targets = self.returns(rollout, values)
        return Transitions.of(rollout, targets, one_step=self.returns(rollout, values, 0.0))

    def credited(self, part: Transitions) -> Tensor | None:
        """Return r + γ·V̄(s'), or the TD(λ) returns."""
        return part.targets if self.learning.advantage == "return" else part.one_step

    def action_values(self, outputs: Tensor) -> Tensor:
        """Repeat V(s) for each action, so that the baseline of any policy is V(s)."""
        return outputs.expand(-1, self.sizes.num_actions).contiguous()

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return the mean squared error of V(s) [B, 1] to the targets."""
        return mean_of((outputs.squeeze(1) - part.targets).square(), part.weights)


class IAC(StateValues):
    """IAC-V (Foerster et al. 2018): the critic also sees only the UAV's own observation.

    All UAVs share the weights of one actor and one critic, as in COMA.
    """

    central = False


class CentralV(StateValues):
    """Central-V (Foerster et al. 2018): V(s) of the team's state, no credit assignment."""
