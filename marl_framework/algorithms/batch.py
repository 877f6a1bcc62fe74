"""Transitions without their order in time, and diagnostics of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marl_framework.algorithms.losses import mean_of, taken
from marl_framework.algorithms.policy import kl_divergence, policy_entropy
from marl_framework.algorithms.ranks import (
    mean_over_ranks,
    number_of_ranks,
    power_sums,
    variance,
    variance_over_ranks,
)
from marl_framework.algorithms.rollout import Rollout

POWER_SUMS = "power_sums"
"""Of targets, their residuals and advantages, [3, 3]: a diagnostic on several ranks only."""


@dataclass
class Transitions:
    """Transitions [B, …], each one move of one UAV."""

    observations: Tensor
    """[B, C_a, X, Y]."""
    critic_maps: Tensor
    """What only the critic sees, [B, C_c - C_a, X, Y]."""
    actions: Tensor
    """Taken, [B] int64."""
    masks: Tensor
    """Allowed actions, [B, A] bool."""
    old_probabilities: Tensor
    """π of the policy that flew, [B, A]."""
    targets: Tensor
    """[B]."""
    one_step: Tensor | None = None
    """Reward and discounted value of what came next, [B]; of algorithms that judge states."""
    advantages: Tensor | None = None
    """Of the actions taken, [B]; of algorithms that judge them once, before any update."""
    old_values: Tensor | None = None
    """The critic's outputs then, [B]."""
    weights: Tensor | None = None
    """How much each counts in means, [B]: 0 for agents that did not act; None = all the same."""
    teacher: Tensor | None = None
    """Policy of a teacher, [B, A]."""
    maps: Tensor | None = None
    """Observations and critic maps in one tensor, where they are views of one."""

    @classmethod
    def of(cls, rollout: Rollout, targets: Tensor, **others: Tensor) -> Transitions:
        """Return all transitions of a rollout with their targets [T, E, N], as views.

        Args:
            rollout: whole episodes.
            targets: [T, E, N].
            others: optional fields by name, [T, E, N].
        """
        if rollout.active is not None:
            others["weights"] = rollout.active.float()
        return cls(
            observations=rollout.observations.flatten(0, 2),
            critic_maps=rollout.critic_maps.flatten(0, 2),
            actions=rollout.actions.flatten(),
            masks=rollout.masks.flatten(0, 2),
            old_probabilities=rollout.probabilities.flatten(0, 2),
            targets=targets.flatten(),
            **{name: field.flatten() for name, field in others.items()},
        )

    @property
    def critic_inputs(self) -> Tensor:
        """The observations, then what only the critic sees: [B, C_c, X, Y]."""
        if self.maps is not None:
            return self.maps
        return torch.cat((self.observations, self.critic_maps), dim=1)

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, index: Tensor) -> Transitions:
        return Transitions(**{name: field[index] for name, field in self.tensors().items()})

    def balanced(self) -> Transitions:
        """Return the batch with weights whose mean over the batches of all ranks is 1."""
        if self.weights is None:
            return self
        mean = mean_over_ranks(self.weights.mean())
        return replace(self, weights=self.weights / mean.clamp(min=1e-9))

    def split(self, size: int) -> list[Transitions]:
        """Return parts of at most `size` transitions as views; the whole for 0."""
        if size == 0 or size >= len(self):
            return [self]
        fields = self.tensors()
        columns = zip(*(field.split(size) for field in fields.values()), strict=True)
        return [Transitions(**dict(zip(fields, column, strict=True))) for column in columns]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: field for name, field in vars(self).items() if field is not None}


@torch.no_grad()
def diagnostics(
    batch: Transitions, values: Tensor, probabilities: Tensor, advantages: Tensor
) -> dict[str, Tensor]:
    """Return diagnostics of a batch, by name of `training.logging.METRICS`.

    Args:
        batch: B transitions.
        values: Q(s, ·) before the update, [B, A].
        probabilities: π before the update, [B, A].
        advantages: of the actions taken, [B].
    """
    q = taken(values, batch.actions)
    residuals = batch.targets - q
    counted = None if batch.weights is None else batch.weights > 0
    found = {
        "q_taken": mean_of(q, batch.weights),
        "td_error": mean_of(residuals.abs(), batch.weights),
        "explained_variance": _explained(
            _variance(residuals, counted), _variance(batch.targets, counted)
        ),
        "advantage": mean_of(advantages, batch.weights),
        "advantage_std": advantages.std()
        if counted is None
        else _variance(advantages, counted).sqrt(),
        "policy_entropy": mean_of(policy_entropy(probabilities), batch.weights),
        "largest_probability": mean_of(probabilities.max(-1).values, batch.weights),
        "kl": mean_of(kl_divergence(batch.old_probabilities, probabilities), batch.weights),
    }
    if batch.teacher is not None:
        found["teacher_kl"] = mean_of(kl_divergence(batch.teacher, probabilities), batch.weights)
    if number_of_ranks() > 1:
        numbers = (batch.targets, residuals, advantages)
        found[POWER_SUMS] = torch.stack([power_sums(value, counted) for value in numbers])
    return found


def _variance(numbers: Tensor, counted: Tensor | None) -> Tensor:
    """Return the variance of those numbers that count, on this rank."""
    if counted is None:
        return numbers.var()
    return variance(power_sums(numbers, counted)).to(numbers.dtype)


def spreads_over_ranks(sums: Tensor) -> dict[str, Tensor]:
    """Return the diagnostics that are no mean of the ranks' own, as means over K batches.

    Args:
        sums: means over the ranks of each batch's `POWER_SUMS`, [K, 3, 3].
    """
    targets, residuals, advantages = variance_over_ranks(sums).unbind(-1)
    return {
        "explained_variance": _explained(residuals, targets).mean(),
        "advantage_std": advantages.sqrt().mean(),
    }


def _explained(residuals: Tensor, targets: Tensor) -> Tensor:
    """Return the share of the targets' variance that the critic explains."""
    return 1 - residuals / targets.clamp(min=1e-8)
