"""What a student learns from: states that it reached, and what its teachers say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from marl_framework.algorithms.policy import kl_divergence
from marl_framework.observations.symmetry import Symmetries

_FLOOR = 0.01
"""Of labels in the reverse direction, mixed with a uniform choice: 0 has no logarithm."""


@dataclass
class Samples:
    """B states, each of one UAV before a move."""

    observations: Tensor
    """What the student sees, [B, C_a, X, Y] float16."""
    masks: Tensor
    """Actions allowed to it, [B, A] bool."""
    labels: Tensor
    """The teacher's policy over these, [B, A] float32."""
    weights: Tensor
    """1, or 0 where the teacher says nothing for any of them, [B] float32."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return all samples of some parts."""
        return cls(*map(torch.cat, zip(*(part.tensors().values() for part in parts), strict=True)))

    def __len__(self) -> int:
        return len(self.weights)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return dict(vars(self))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        """Return what `tensors` gave, on a device."""
        return cls(**{name: tensor.to(device) for name, tensor in tensors.items()})

    def batch(self, index: Tensor) -> Self:
        """Return some samples [b], observations in float32."""
        observations, *others = (part[index] for part in self.tensors().values())
        return type(self)(observations.float(), *others)

    def turned(self, symmetries: Symmetries, which: Tensor) -> Self:
        """Return the samples as symmetry `which` [B] shows them, to student and teacher alike."""
        return type(self)(
            symmetries.maps(self.observations, which),
            symmetries.policies(self.masks, which),
            symmetries.policies(self.labels, which),
            self.weights,
        )


def divergence(batch: Samples, policy: Tensor, direction: str) -> Tensor:
    """Return the mean divergence of student and teachers over samples with a label [nat].

    `forward` is KL(teacher ‖ student), whose gradient is that of the cross-entropy; `reverse` is
    KL(student ‖ teacher) (Agarwal et al. 2024, arXiv 2306.13649, section 3).

    Args:
        batch: B samples.
        policy: of the student, [B, A].
        direction: forward or reverse.
    """
    if direction == "forward":
        distances = kl_divergence(batch.labels, policy)
    else:
        uniform = batch.masks / batch.masks.sum(-1, keepdim=True)
        distances = kl_divergence(policy, batch.labels.lerp(uniform, _FLOOR))
    return weighted_mean(distances, batch.weights)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of values [B] with weights [B]; 0 where all weights are."""
    return (values * weights).sum() / weights.sum().clamp(min=1)
