"""Metrics of belief maps against the ground truth, for a batch of missions.

Functions take `belief` [E, R, C] (floating point, P(region of interest) of each cell) and `truth`
[E, R, C] (bool, True = region of interest, ROI). They return [E] with the belief's dtype and
device, without a transfer to the host. `seen` [E, R, C] bool marks the cells that at least one UAV
has read; a lost frame reads none.

In a mission without ROI cells, `f1` and the means over ROI cells (`roi_entropy`, `wrmse`, `wmll`)
are 0. While no cell is read, `ece` and `brier` are 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marl_framework.kernels.cells import INTEREST_ABOVE, clamp_probability, entropy
from marl_framework.mission.accuracy import chunks, count, f1

_BINS = 10  # of equal width, for the calibration error
_MARGIN = INTEREST_ABOVE - 0.5  # rounding must not choose the bin of cells at 0.5


def roi_entropy(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the mean entropy of the ROI cells [bit]: their remaining uncertainty."""
    total = (entropy(belief) * truth).sum(dim=(-2, -1))
    return total / count(truth).clamp(min=1).to(belief.dtype)


def coverage(seen: Tensor, inside: Tensor | None = None) -> Tensor:
    """Return the share of cells that were read, [E] float32; for `inside` see `map_metrics`."""
    cells = seen.shape[-2] * seen.shape[-1] if inside is None else count(inside)
    return count(seen).to(torch.float32) / cells


def calibration_error(belief: Tensor, truth: Tensor, seen: Tensor) -> Tensor:
    """Return the expected calibration error (Guo et al. 2017) of P(ROI) over the cells read.

    Ten bins of equal width contain the cells by their belief. The error is the mean of |mean
    belief − share of ROI cells| over the bins, weighted by their number of cells. A belief of up
    to 0.001 above the edge between two bins belongs to the lower one.
    """
    # Faster than `bucketize`. An index must not be NaN; the result may.
    bins = ((belief - _MARGIN) * _BINS).ceil_().sub_(1).clamp_(0, _BINS - 1).nan_to_num_(0).long()
    # Differences within a bin sum to its number of cells · (mean belief − share of ROI cells).
    differences = (belief - truth.to(belief.dtype)) * seen
    sums = belief.new_zeros(*belief.shape[:2], _BINS)  # by row, for precision
    sums.scatter_add_(2, bins, differences)
    return sums.sum(1).abs().sum(1) / count(seen).clamp(min=1).to(belief.dtype)


def map_metrics(
    belief: Tensor, truth: Tensor, seen: Tensor, inside: Tensor | None = None
) -> dict[str, Tensor]:
    """Return all metrics by name, [E] each, computed in chunks of missions for speed.

    `inside` marks the cells that count, [E, R, C] bool; None for all. The others must be neither
    of interest nor seen. `rmse` is the root mean squared error and `mll` the mean log loss [nat];
    `wrmse` and `wmll` are the same over the ROI cells. `brier` is the Brier score, the mean squared
    error over the cells read. For `f1` see `accuracy.f1`, for `ece` see `calibration_error`.
    """
    maps = (belief, truth, seen) if inside is None else (belief, truth, seen, inside)
    parts = [_chunk_metrics(*chunk) for chunk in chunks(*maps)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _chunk_metrics(
    belief: Tensor, truth: Tensor, seen: Tensor, inside: Tensor | None = None
) -> dict[str, Tensor]:
    """Return all metrics of a few missions; compute each logarithm only once."""
    roi = truth.to(belief.dtype)
    weight = roi / count(truth).clamp(min=1).to(belief.dtype)[:, None, None]
    p = clamp_probability(belief)
    log_p, log_q = p.log(), (1 - p).log()
    likelihoods = torch.where(truth, log_p, log_q)
    errors = (belief - roi).square_()
    entropies = log_q.lerp_(log_p, p)  # p·log p + (1 - p)·log(1 - p)

    def mean(values: Tensor) -> Tensor:
        if inside is None:
            return values.mean(dim=(-2, -1))
        return (values * inside).sum(dim=(-2, -1)) / count(inside).to(belief.dtype)

    def mean_over_roi(values: Tensor) -> Tensor:
        return (values * weight).sum(dim=(-2, -1))

    return {
        "roi_entropy": mean_over_roi(entropies) / -math.log(2),
        "f1": f1(belief, truth),
        "rmse": mean(errors).sqrt(),
        "wrmse": mean_over_roi(errors).sqrt(),
        "mll": -mean(likelihoods),
        "wmll": -mean_over_roi(likelihoods),
        "ece": calibration_error(belief, truth, seen),
        "brier": (errors * seen).sum(dim=(-2, -1)) / count(seen).clamp(min=1).to(belief.dtype),
    }
