"""Training samples of a student: states that it reached, labelled by its teachers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from marl_framework.algorithms.policy import kl_divergence
from marl_framework.observations.symmetry import Symmetries

_UNIFORM_SHARE = 0.01  # of labels in the reverse direction, since 0 has no logarithm


class Samples(NamedTuple):
    """B states, each of one UAV before a move."""

    observations: Tensor
    """Observations of the student, [B, C_a, X, Y] float16."""
    masks: Tensor
    """Allowed actions of the student, [B, A] bool."""
    labels: Tensor
    """The teacher's policy over these, [B, A] float32."""
    weights: Tensor
    """1, or 0 if the teacher rates none of these actions, [B] float32."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate samples."""
        return cls(*map(torch.cat, zip(*parts, strict=True)))

    def batch(self, index: Tensor) -> Self:
        """Return the samples of some indices [b], with observations in float32."""
        observations, *others = (part[index] for part in self)
        return type(self)(observations.float(), *others)

    def turn(self, symmetries: Symmetries, which: Tensor) -> Self:
        """Return the samples under symmetry `which` [B], labels included."""
        return self._replace(
            observations=symmetries.maps(self.observations, which),
            masks=symmetries.policies(self.masks, which),
            labels=symmetries.policies(self.labels, which),
        )


def divergence(batch: Samples, policy: Tensor, direction: str) -> Tensor:
    """Return the mean divergence of student and teachers over samples with a label [nat].

    `forward` is KL(teacher ‖ student), whose gradient is that of the cross-entropy; `reverse` is
    KL(student ‖ teacher) (Agarwal et al. 2024, arXiv 2306.13649, section 3).

    The `policy` of the student is [B, A].
    """
    if direction == "forward":
        distances = kl_divergence(batch.labels, policy)
    else:
        uniform = batch.masks / batch.masks.sum(-1, keepdim=True)
        distances = kl_divergence(policy, batch.labels.lerp(uniform, _UNIFORM_SHARE))
    return weighted_mean(distances, batch.weights)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of values [B] with weights [B]; 0 if all weights are 0."""
    return (values * weights).sum() / weights.sum().clamp(min=1)
