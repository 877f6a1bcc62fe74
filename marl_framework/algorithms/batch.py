"""Transitions without their order in time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marl_framework.algorithms.rollout import Rollout


@dataclass
class Transitions:
    """Transitions [B, …], each one move of one UAV."""

    observations: Tensor
    """Input of the actor, [B, C_a, X, Y]."""
    critic_maps: Tensor
    """Channels that only the critic sees, [B, C_c - C_a, X, Y]."""
    actions: Tensor
    """Actions taken, [B] int64."""
    masks: Tensor
    """Allowed actions, [B, A] bool."""
    old_probabilities: Tensor
    """π of the policy that flew, [B, A]."""
    targets: Tensor
    """Targets of the critic, [B]."""
    one_step: Tensor | None = None
    """Reward plus discounted value of the next state, [B]; for critics of states."""
    advantages: Tensor | None = None
    """Advantages of the actions taken, [B], if fixed before the updates; else None."""
    old_values: Tensor | None = None
    """Outputs of the critic before the updates, [B]."""
    weights: Tensor | None = None
    """Weight of each transition in means, [B]: 0 for inactive UAVs; None = all equal."""
    teacher: Tensor | None = None
    """Policy of a teacher, [B, A]."""
    maps: Tensor | None = None
    """One tensor of which observations and critic maps are views, [B, C_c, X, Y]."""

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
        """Observations and critic maps, [B, C_c, X, Y]."""
        if self.maps is not None:
            return self.maps
        return torch.cat((self.observations, self.critic_maps), dim=1)

    @property
    def counted(self) -> Tensor | None:
        """Transitions with a weight above 0, [B] bool; None = all."""
        return None if self.weights is None else self.weights > 0

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, index: Tensor) -> Transitions:
        return Transitions(**{name: field[index] for name, field in self.tensors().items()})

    def micro_batches(self, size: int) -> list[Transitions]:
        """Return parts of at most `size` transitions as views; the whole for 0."""
        if size == 0 or size >= len(self):
            return [self]
        fields = self.tensors()
        columns = zip(*(field.split(size) for field in fields.values()), strict=True)
        return [Transitions(**dict(zip(fields, column, strict=True))) for column in columns]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: field for name, field in vars(self).items() if field is not None}
