"""Beliefs of single cells: rule of Bayes, entropy, weight."""

from __future__ import annotations

import torch
from torch import Tensor

PROBABILITY_FLOOR = 1e-4
"""Beliefs are clamped to [floor, 1 - floor] before they are updated or put into a logarithm."""


def bayes_update(belief: Tensor, readings: Tensor, odds: Tensor, prior: float) -> Tensor:
    """Update the belief of cells with one reading each; cells without a reading stay as they are.

    logit p' = logit clamp(p) + log(odds of the reading) - logit prior, as in the published code.
    With a prior of 0.5 that is the rule of Bayes; another one counts again at every reading.

    Args:
        belief: P(region of interest), any shape.
        readings: +1, -1, or 0 for no reading; broadcastable to `belief`.
        odds: of the two readings, see `reading_odds`; [..., 2], without its last axis
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


def reading_odds(rates: Tensor) -> Tensor:
    """Return P(reading | of interest) / P(reading | not) of a positive and a negative reading.

    Args:
        rates: probabilities of a miss and of a false alarm, [..., 2] (see `sensor.Sensor`).

    Returns:
        [..., 2].
    """
    miss, false_alarm = rates.unbind(-1)
    return torch.stack(((1 - miss) / false_alarm, miss / (1 - false_alarm)), -1)


def reading_shift(rates: Tensor) -> Tensor:
    """Return how far a positive reading raises a belief of 0.5, and a negative one lowers it.

    Args:
        rates: as of `reading_odds`, [..., 2].

    Returns:
        [..., 2], in (0, 0.5).
    """
    return 0.5 - _wrong(rates)


def entropy_left(rates: Tensor) -> Tensor:
    """Return the entropy that a belief of 0.5 is expected to keep after one reading [bit].

    Args:
        rates: as of `reading_odds`, [..., 2].
    """
    miss, false_alarm = rates.unbind(-1)
    positive = (false_alarm + (1 - miss)) / 2
    after_positive, after_negative = entropy(_wrong(rates)).unbind(-1)
    return positive * after_positive + (1 - positive) * after_negative


def _wrong(rates: Tensor) -> Tensor:
    """Return how likely a positive and a negative reading are wrong, from a belief of 0.5."""
    miss, false_alarm = rates.unbind(-1)
    wrong = false_alarm / (false_alarm + (1 - miss)), miss / (miss + (1 - false_alarm))
    return torch.stack(wrong, -1)


def clamp_probability(p: Tensor) -> Tensor:
    """Clamp probabilities to [1e-4, 1 - 1e-4]."""
    return p.clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)


def entropy(p: Tensor) -> Tensor:
    """Return the binary entropy of clamped probabilities [bit]."""
    p = clamp_probability(p)
    return -(p * torch.log2(p) + (1 - p) * torch.log2(1 - p))


def interest_weight(p: Tensor) -> Tensor:
    """Return w(p): 1 where p > 0.501, 0 where p < 0.499, else 0.5; of any shape, as `p`."""
    return 0.5 * ((p > 0.501).to(p.dtype) + (p >= 0.499).to(p.dtype))


def weighted_entropy(p: Tensor) -> Tensor:
    """Return w(p)·H(p) [bit] of probabilities of any shape."""
    return interest_weight(p) * entropy(p)


def uncertainty(p: Tensor) -> Tensor:
    """Return p·H(p) [bit]: the entropy that a cell is expected to add to the region of interest."""
    return clamp_probability(p) * entropy(p)
