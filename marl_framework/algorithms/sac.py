"""Discrete soft actor-critic (Christodoulou 2019, arXiv 1910.07207) with replayed missions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import retrace_returns, select_taken
from marl_framework.algorithms.optimisers import Learner, Step
from marl_framework.algorithms.policy import Floor, policy_entropy, policy_probabilities
from marl_framework.algorithms.ranks import mean_of
from marl_framework.algorithms.replay import Replayed
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.state_values import SomeChannels
from marl_framework.config.model import Config
from marl_framework.networks.registry import make_critic

TEMPERATURE_RATE = 3.0
"""Learning rate of the temperature, relative to the actor's.

Christodoulou's rates are equal; with few updates the temperature then hardly leaves its initial
value. A tenfold rate let it fall before the critics had learned, and policies stopped exploring.
"""


class Temperature(nn.Module):
    """Learned weight α of the policy's entropy.

    `initial` must be above 0.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_value = nn.Parameter(torch.tensor(math.log(initial)))

    @property
    def value(self) -> Tensor:
        """The weight α, [], as a constant."""
        return self.log_value.detach().exp()

    def forward(self, surplus: Tensor) -> Tensor:
        """Return the loss log α · (H - H̄) [B] for entropies that exceed their target by [B]."""
        return self.log_value * surplus


class TwinCritic(nn.Module):
    """Two critics with the same inputs [B, C, X, Y]; outputs are stacked, [B, 2, A]."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.critics = nn.ModuleList((first, second))

    def forward(self, maps: Tensor) -> Tensor:
        """Run both critics."""
        return torch.stack([critic(maps) for critic in self.critics], dim=1)


class SAC(Replayed):
    """Soft actor-critic for discrete actions: learns from missions drawn from a `Replay`.

    The critics see the actions of the other UAVs as they were flown, also in the targets.

    Attributes:
        temperature: weight of the entropy; learned, in `modules`.
    """

    central = True
    """Whether the critics see the critic's maps in addition to the UAV's observation."""

    def __init__(self, config: Config, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self.temperature = Temperature(self.learning.temperature).to(self.device)
        self.modules["temperature"] = self.temperature
        self._temperature = Learner(self.temperature, self.learning.actor, *self._shared)
        self._temperature.rate *= TEMPERATURE_RATE
        self._learners["temperature"] = self._temperature

    def new_critic(self, config: Config) -> nn.Module:
        """Build two critics from maps [B, C_c, X, Y] to values of own actions [B, 2, A]."""
        own, channels = self.sizes.actor_channels, self.sizes.critic_channels
        sizes = self.sizes if self.central else replace(self.sizes, critic_channels=own)
        networks, compute = config.networks, config.compute
        twins = TwinCritic(*(make_critic(networks, compute, sizes) for _ in range(2)))
        return twins if self.central else SomeChannels(twins, channels, range(own, channels))

    def action_values(self, outputs: Tensor) -> Tensor:
        """Return the smaller one of both critics' values, [B, A]."""
        return outputs.amin(1)

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return the sum of both critics' losses for outputs [B, 2, A]."""
        first, second = outputs.unbind(1)
        return super().critic_loss(first, part) + super().critic_loss(second, part)

    def policy_loss(
        self, logits: Tensor, part: Transitions, outputs: Tensor, credit: Tensor, epsilon: Floor
    ) -> Tensor:
        """Return the mean of -Σ_a π(a)·Q(s, a) - α·H(π)."""
        pi = policy_probabilities(logits, part.masks, epsilon)
        values = self.action_values(outputs)
        soft_value = (pi * values).sum(-1) + self.temperature.value * policy_entropy(pi)
        return -mean_of(soft_value, part.weights)

    @torch.no_grad()
    def targets(self, rollout: Rollout, epsilon: Floor) -> Tensor:
        """Compute soft Retrace(λ) targets [T, E, N] of whole missions under the current policy."""
        lead, learning = rollout.actions.shape, self.learning
        values = self.action_values(self.evaluate(rollout)).view(*lead, -1)
        pi = policy_probabilities(self.logits(self.actor, rollout), rollout.masks, epsilon)
        soft_values = (pi * values).sum(-1) + self.temperature.value * policy_entropy(pi)
        taken, flown = (select_taken(q, rollout.actions) for q in (pi, rollout.probabilities))
        traces = learning.lambda_ * (taken / flown).clamp(max=1)
        taken = select_taken(values, rollout.actions)
        options = learning.gamma, rollout.active
        return retrace_returns(rollout.rewards, soft_values, taken, traces, *options)

    def _update_actor(
        self, batch: Transitions, parts: list[Transitions], outputs: list[Tensor], epsilon: Floor
    ) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Step]:
        """Update the actor on a batch, then the temperature; see the base class."""
        described, step = super()._update_actor(batch, parts, outputs, epsilon)
        share = self.learning.target_entropy

        def compute_loss(index: int) -> Tensor:
            part, (_, pi, _) = parts[index], described[index]
            target = share * part.masks.sum(-1).log()
            return mean_of(self._temperature.network(policy_entropy(pi) - target), part.weights)

        loss = self._temperature.backward([len(part) for part in parts], compute_loss)
        self._temperature.step(loss, self._idle)
        return described, step

    def _run_updates(
        self, rollout: Rollout, generator: torch.Generator | None, steps: int, epsilon: Floor
    ) -> dict[str, Tensor]:
        stats = super()._run_updates(rollout, generator, steps, epsilon)
        return {**stats, "temperature": self.temperature.value}


class ISAC(SAC):
    """Independent SAC: the critics see only the UAV's own observation."""

    central = False
