"""Contract of belief cells: Bayes' rule, entropy and weight, and their averages and sums.

Averages over equal parts of a map weight fractional cells exactly, as OpenCV's `INTER_AREA` does
when shrinking. `kornia.geometry.transform.resize(interpolation="area")` averages whole cells:
for 493 → 11 cells, its error is up to 2e-2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.kernels.versions import Version, check_contiguous, launch, load

PROBABILITY_FLOOR = 1e-4
"""Floor ε: beliefs are clamped to [ε, 1 - ε] before an update or a logarithm."""
INTEREST_ABOVE, NO_INTEREST_BELOW = 0.501, 0.499
"""Beliefs between these limits get weight 0.5; contradicting readings give 0.5 up to rounding."""
PARTS_AT_ONCE = 16
"""Number of parts that one program of `sum_parts` sums."""


def bayes_update(belief: Tensor, readings: Tensor, odds: Tensor, prior: float = 0.5) -> Tensor:
    """Return the belief of each cell after one reading; cells without a reading do not change.

    logit p' = logit clamp(p) + log(odds of the reading) - logit prior, as in the published code.
    For a prior of 0.5 this is Bayes' rule; any other prior is subtracted at every reading.

    Args:
        belief: P(region of interest), of any shape.
        readings: +1, -1, or 0 for no reading; broadcastable to `belief`.
        odds: see `sensor.reading_odds`; [..., 2], where [...] is broadcastable to `belief`.
        prior: belief before any reading.
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
    """Return p·H(p) [bit]: the expected contribution of a cell to the entropy of the ROI."""
    return clamp_probability(p) * entropy(p)


def interval_overlap(low: Tensor, high: Tensor, start: Tensor, width: Tensor) -> Tensor:
    """Return the share of the interval [start, start + width) that [low, high) covers."""
    shared = torch.minimum(high, start + width) - torch.maximum(low, start)
    return shared.clamp(min=0) / width


def covered(low: Tensor, high: Tensor, cells: int, outputs: int) -> Tensor:
    """Return how much intervals cover of each equal part of an axis, [..., outputs, S] float32.

    `low` is the first cell of each of S intervals and `high` one past the last cell, [..., S].
    """
    width = torch.full((), cells / outputs, dtype=torch.float32, device=low.device)
    start = torch.arange(outputs, device=low.device).unsqueeze(1) * width
    first, last = (bound.unsqueeze(-2).to(width.dtype) for bound in (low, high))
    return interval_overlap(first, last, start, width)


def area_weights(cells: int, outputs: int, side: int | None = None) -> Tensor:
    """Return the matrix [outputs, cells] float64 that averages cells onto equal parts of a side.

    The cells lie in the middle of the side; its length in cells is `side`, by default `cells`.
    """
    side = cells if side is None else side
    edges = torch.arange(cells, dtype=torch.float64) + (side - cells) / 2
    width = torch.tensor(side / outputs, dtype=torch.float64)
    start = torch.arange(outputs, dtype=torch.float64).unsqueeze(1) * width
    return interval_overlap(edges, edges + 1, start, width)


def lattice_weights(
    map_shape: tuple[int, int], shape: tuple[int, int], device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return row and column weights (float32) for `area_pool` from maps (R, C) to (X, Y)."""
    rows, cols = (
        area_weights(cells, outputs).float().to(device)
        for cells, outputs in zip(map_shape, shape, strict=True)
    )
    return rows, cols


def area_pool(maps: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """Average maps [..., R, C] with row weights [..., X, R] and column weights [..., Y, C]."""
    return rows @ maps @ cols.mT


def grid_coordinates(index: Tensor, size: int) -> Tensor:
    """Convert cell indices to coordinates for `grid_sample` with aligned corners.

    kornia's conversion copies factors from the host, which CUDA graphs cannot record.
    """
    return index if size == 1 else index * (2.0 / (size - 1.0)) - 1.0


def part_sums(version: Version, beliefs: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """Return sums of p, H(p) and p·H(p) over P × Q parts of each belief map, [..., 3, P, Q].

    Beliefs p are [..., R, C]. Parts end before the rows `row_ends` [P] and columns `col_ends` [Q],
    int64. `version` must be compiled loops or Triton.
    """
    maps = beliefs.flatten(0, -3).contiguous()
    sums = sum_parts if version is Version.TRITON else load("cells", version).part_sums
    result: Tensor = sums(maps, row_ends, col_ends)
    return result.unflatten(0, beliefs.shape[:-2])


@torch.library.custom_op("marl_framework::sum_parts", mutates_args=())
def sum_parts(maps: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """See `part_sums`; maps are [M, R, C]."""
    check_contiguous(maps)
    sums = _empty(maps, row_ends, col_ends)
    programs = len(maps) * len(row_ends) * -(-len(col_ends) // PARTS_AT_ONCE)
    sizes = *maps.shape[1:], *sums.shape[2:]
    # One warp each, so that sums need no barrier.
    launch("cells.sum_parts", (programs,), maps, row_ends, col_ends, sums, *sizes, num_warps=1)
    return sums


@sum_parts.register_fake
def _empty(maps: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    return maps.new_empty(len(maps), 3, len(row_ends), len(col_ends))
