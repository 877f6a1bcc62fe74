"""Masked softmax policy with an ε floor."""

from __future__ import annotations

import torch
from torch import Tensor

Floor = float | Tensor
"""Floor ε of the policy; a scalar tensor while CUDA graphs are recorded."""


def policy_probabilities(logits: Tensor, mask: Tensor, epsilon: Floor) -> Tensor:
    """Return π = (1 - ε)·softmax over the allowed actions + ε/|allowed|; 0 where masked.

    Args:
        logits: policy logits, [..., A].
        mask: allowed actions, at least one, [..., A] bool.
        epsilon: floor, in [0, 1].
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    softmax = exact.masked_fill(~mask, -torch.inf).softmax(-1)
    uniform = mask / mask.sum(-1, keepdim=True)
    return (1 - epsilon) * softmax + epsilon * uniform


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Return log π, finite everywhere, with zero gradient where π is 0."""
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


def kl_divergence(old: Tensor, new: Tensor) -> Tensor:
    """Return KL(old ‖ new) [...] of policies [..., A] over the same allowed actions [nat]."""
    return (old * (log_probabilities(old) - log_probabilities(new))).sum(-1)


def sample_actions(probabilities: Tensor, uniform: Tensor, mask: Tensor) -> Tensor:
    """Sample from π [..., A] by an exponential race: argmax π_a / e_a, with e_a exponential.

    A masked action never wins, even if π is NaN. `probabilities` are π and `uniform` draws in
    [0, 1), [..., A]; `mask` has at least one allowed action, [..., A] bool. Returns actions, [...]
    int64.
    """
    exponential = -uniform.clamp(min=torch.finfo(uniform.dtype).tiny).log()
    return (probabilities / exponential).masked_fill(~mask, -1).argmax(-1)


def best_actions(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the allowed actions [...] with the highest scores [..., A]; ties: first action."""
    return scores.masked_fill(~mask, -torch.inf).argmax(-1)


def policy_entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy [...] of π [..., A] [nat]."""
    return -(probabilities * log_probabilities(probabilities)).sum(-1)


def epsilon_at(episodes: int, maximum: float, minimum: float, anneal_phase: int) -> float:
    """Return ε after `episodes` missions: linear from maximum to minimum, then constant."""
    share = min(episodes / anneal_phase, 1.0)
    return maximum + share * (minimum - maximum)
