"""Beliefs of single cells: Bayes update, entropy, weight."""

from __future__ import annotations

import torch
from torch import Tensor

PROBABILITY_FLOOR = 1e-4
"""Beliefs are clamped to [floor, 1 - floor] before they are updated or put into a logarithm."""


def bayes_update(belief: Tensor, readings: Tensor, noise: Tensor, prior: float) -> Tensor:
    """Update the belief of cells with one reading each; cells without a reading stay as they are.

    logit p' = logit clamp(p) + logit z - logit prior, with z = 1 - noise or noise.

    Args:
        belief: P(region of interest), any shape.
        readings: +1, -1, or 0 for no reading; broadcastable to `belief`.
        noise: probability of a wrong reading, broadcastable to `belief`.
        prior: belief before any reading.

    Returns:
        The updated belief, same shape.
    """
    against_prior = (1 - prior) / prior
    odds = torch.where(readings > 0, (1 - noise) / noise, noise / (1 - noise)) * against_prior
    p = clamp_probability(belief)
    updated = p * odds / (p * odds + (1 - p))
    return torch.where(readings != 0, updated, belief)


def clamp_probability(p: Tensor) -> Tensor:
    """Clamp probabilities to [1e-4, 1 - 1e-4]."""
    return p.clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)


def entropy(p: Tensor) -> Tensor:
    """Return the binary entropy of clamped probabilities [bit]."""
    p = clamp_probability(p)
    return -(p * torch.log2(p) + (1 - p) * torch.log2(1 - p))


def interest_weight(p: Tensor) -> Tensor:
    """Return w(p): 1 where p > 0.501, 0 where p < 0.499, else 0.5."""
    return 0.5 * ((p > 0.501).to(p.dtype) + (p >= 0.499).to(p.dtype))


def weighted_entropy(p: Tensor) -> Tensor:
    """Return w(p)·H(p) [bit]."""
    return interest_weight(p) * entropy(p)


def uncertainty(p: Tensor) -> Tensor:
    """Return p·H(p) [bit]: the entropy that a cell is expected to add to the region of interest."""
    return clamp_probability(p) * entropy(p)
