"""Contract of single cells of beliefs: rule of Bayes, entropy, weight.

All versions import the constants from here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.kernels.versions import Kernel

PROBABILITY_FLOOR = 1e-4
"""Beliefs are clamped to [floor, 1 - floor] before an update or a logarithm."""
INTEREST_ABOVE, NO_INTEREST_BELOW = 0.501, 0.499
"""In between a cell counts half: contradicting readings leave it at 0.5 up to rounding."""

KERNELS = {
    "clamp": Kernel("kernels.cells.clamp_probability", triton="clamp"),
    "bayes": Kernel("kernels.cells.bayes_update", "bayes", "bayes"),
    "entropy": Kernel("kernels.cells.entropy", "log2 entropy", "entropy"),
    "weight": Kernel("kernels.cells.interest_weight", "weight", "weight"),
    "uncertainty": Kernel("kernels.cells.uncertainty", "uncertainty"),
}


def bayes_update(belief: Tensor, readings: Tensor, odds: Tensor, prior: float = 0.5) -> Tensor:
    """Update the belief of cells with one reading each; cells without a reading do not change.

    logit p' = logit clamp(p) + log(odds of the reading) - logit prior, as in the published code.
    With a prior of 0.5 that is the rule of Bayes; another prior counts again at every reading.

    Args:
        belief: P(region of interest), any shape.
        readings: +1, -1, or 0 for no reading; broadcastable to `belief`.
        odds: of the two readings, see `sensor.reading_odds`; [..., 2], without its last axis
            broadcastable to `belief`.
        prior: belief before any reading.

    Returns:
        The updated belief, same shape.
    """
    positive, negative = odds.unbind(-1)
    factor = torch.where(readings > 0, positive, negative) * ((1 - prior) / prior)
    p = clamp_probability(belief)
    updated = p * factor / (p * factor + (1 - p))
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
    return 0.5 * ((p > INTEREST_ABOVE).to(p.dtype) + (p >= NO_INTEREST_BELOW).to(p.dtype))


def weighted_entropy(p: Tensor) -> Tensor:
    """Return w(p)·H(p) [bit]."""
    return interest_weight(p) * entropy(p)


def uncertainty(p: Tensor) -> Tensor:
    """Return p·H(p) [bit]: the entropy that a cell is expected to add to the region of interest."""
    return clamp_probability(p) * entropy(p)
