"""Transitions of rollouts, flattened into batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from marl_framework.algorithms.ranks import balanced
from marl_framework.algorithms.rollout import Rollout


@dataclass
class Transitions:
    """Transitions [B, …]; each is one move of one UAV."""

    observations: Tensor
    """Input of the actor, [B, C_a, X, Y]."""
    critic_maps: Tensor
    """Channels that only the critic sees, [B, C_c - C_a, X, Y]."""
    actions: Tensor
    """Actions taken, [B] int64."""
    masks: Tensor
    """Allowed actions, [B, A] bool."""
    old_probabilities: Tensor
    """π when the actions were taken, [B, A]."""
    targets: Tensor
    """Critic targets, [B]."""
    one_step: Tensor | None = None
    """One-step target r + γ·V̄(s'), [B]; for state-value critics."""
    advantages: Tensor | None = None
    """Advantages of the actions taken, [B]; None if computed during the updates."""
    old_values: Tensor | None = None
    """Critic outputs before the updates, [B]."""
    weights: Tensor | None = None
    """Weight of each transition in means, [B]; 0 for inactive UAVs; None = equal weights."""
    teacher: Tensor | None = None
    """Probabilities of the teacher's policy, [B, A]."""
    maps: Tensor | None = None
    """Tensor that holds observations and critic maps (both are views), [B, C_c, X, Y]."""
    team: int = 1
    """Number of consecutive transitions that stay together in this order: N for joint moves."""

    @classmethod
    def of(cls, rollout: Rollout, targets: Tensor, **others: Tensor) -> Transitions:
        """Return all transitions of a rollout as views; `targets` and `others` are [T, E, N]."""
        if rollout.active is not None:
            others["weights"] = rollout.active.float()
        return cls(
            observations=rollout.observations.flatten(0, 2),
            critic_maps=rollout.critic_maps.flatten(0, 2),
            actions=rollout.actions.flatten(),
            masks=rollout.masks.flatten(0, 2),
            old_probabilities=rollout.probabilities.flatten(0, 2),
            targets=targets.flatten(),
            **dict[str, Any]({name: field.flatten() for name, field in others.items()}),
        )

    @property
    def critic_inputs(self) -> Tensor:
        """Observations and critic maps, [B, C_c, X, Y]."""
        if self.maps is not None:
            return self.maps
        return torch.cat((self.observations, self.critic_maps), dim=1)

    @property
    def counted(self) -> Tensor | None:
        """Mask of transitions with a weight above 0, [B] bool; None = all."""
        return None if self.weights is None else self.weights > 0

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, index: Tensor | slice) -> Transitions:
        fields: dict[str, Any] = {name: field[index] for name, field in self.tensors().items()}
        return replace(self, **fields)

    def shuffled(
        self, number: int, generator: torch.Generator | None, symmetries: Symmetries | None
    ) -> Iterator[Transitions]:
        """Yield all transitions in at most `number` random batches, under random symmetries.

        A joint move has one symmetry. The weights of a batch have a mean of 1 over all ranks.
        """
        moves, device = len(self) // self.team, self.actions.device
        order = torch.randperm(moves, generator=generator, device=device)
        for index in order.tensor_split(min(number, moves)):
            which = None if symmetries is None else symmetries.draw(len(index), generator)
            if self.team > 1:
                first = index.unsqueeze(1) * self.team
                index = (first + torch.arange(self.team, device=device)).flatten()
                which = None if which is None else which.repeat_interleave(self.team)
            if symmetries is None or which is None:
                batch = self[index]
            else:
                batch = symmetries.take(self, index, which)
            yield replace(batch, weights=balanced(batch.weights))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: field for name, field in vars(self).items() if isinstance(field, Tensor)}


class Symmetries(Protocol):
    """Symmetries of a task: they map transitions to equally valid transitions."""

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw a random symmetry for each of `num` transitions, [num] int64."""

    def take(self, batch: Transitions, index: Tensor, which: Tensor) -> Transitions:
        """Return transitions `index` [B] of a batch, transformed by symmetries `which` [B]."""
