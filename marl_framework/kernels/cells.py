"""Contract of cells of beliefs: rule of Bayes, entropy, weight, and averages and sums of them.

Averages over equal shares of a map are exact at fractional cells, as those of OpenCV's `INTER_AREA`
where it shrinks. Windows of `kornia.geometry.transform.resize(interpolation="area")` end at whole
cells: at 493 → 11 its error is up to 2e-2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.kernels.versions import Kernel, Version, check_contiguous, launch, load

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
    "area_pool": Kernel("kernels.cells.area_pool", "pool_row", "share_of pool_columns"),
    "sum_parts": Kernel(
        "observations.lattice_view.LatticeView.entropy_maps",
        "sum_parts sum_parts_in_parallel",
        "sum_parts",
    ),
}


def bayes_update(belief: Tensor, readings: Tensor, odds: Tensor, prior: float = 0.5) -> Tensor:
    """Return the belief of cells after one reading each; cells without a reading do not change.

    logit p' = logit clamp(p) + log(odds of the reading) - logit prior, as in the published code.
    With a prior of 0.5 that is the rule of Bayes; another prior counts again at every reading.

    Args:
        belief: P(region of interest), any shape.
        readings: +1, -1, or 0 for no reading; broadcastable to `belief`.
        odds: see `sensor.reading_odds`; [..., 2], without its last axis broadcastable to `belief`.
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
    """Return p·H(p) [bit]: the entropy that a cell is expected to add to the region of interest."""
    return clamp_probability(p) * entropy(p)


def interval_overlap(low: Tensor, high: Tensor, start: float | Tensor, width: Tensor) -> Tensor:
    """Return the share of the interval [start, start + width) that [low, high) covers."""
    return (torch.minimum(high, start + width) - torch.maximum(low, torch.as_tensor(start))).clamp(
        min=0
    ) / width


def covered(low: Tensor, high: Tensor, cells: int, outputs: int) -> Tensor:
    """Return the shares of equal parts of an axis that intervals cover, [..., outputs, S] float32.

    `low` is the first cell of each of S intervals, `high` one past the last, both [..., S].
    """
    width = torch.full((), cells / outputs, dtype=torch.float32, device=low.device)
    start = torch.arange(outputs, device=low.device).unsqueeze(1) * width
    first, last = (bound.unsqueeze(-2).to(width.dtype) for bound in (low, high))
    return interval_overlap(first, last, start, width)


def area_weights(cells: int, outputs: int) -> Tensor:
    """Return the matrix [outputs, cells] float64 that averages `cells` cells onto `outputs`."""
    edges = torch.arange(cells, dtype=torch.float64)
    width = torch.tensor(cells / outputs, dtype=torch.float64)
    start = torch.arange(outputs, dtype=torch.float64).unsqueeze(1) * width
    return interval_overlap(edges, edges + 1, start, width)


def lattice_weights(
    map_shape: tuple[int, int], shape: tuple[int, int], device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return the weights that `area_pool` averages whole maps (R, C) onto (X, Y) with, float32."""
    rows, cols = (
        area_weights(cells, outputs).float().to(device)
        for cells, outputs in zip(map_shape, shape, strict=True)
    )
    return rows, cols


def area_pool(maps: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """Average maps [..., R, C] with row weights [..., X, R] and column weights [..., Y, C]."""
    return rows @ maps @ cols.mT


def grid_coordinates(index: Tensor, size: int) -> Tensor:
    """Return indices along an axis of `size` cells as `grid_sample` takes them, corners aligned.

    kornia's own conversion copies its factors from the host, which CUDA graphs cannot record.
    """
    return index if size == 1 else index * (2.0 / (size - 1.0)) - 1.0


def part_sums(version: Version, beliefs: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """Return sums of beliefs p, of H(p) and of p·H(p) over parts of maps, [..., 3, P, Q].

    Beliefs are [..., R, C]; parts end before rows [P] and columns [Q], int64. The version is that
    of compiled loops or Triton.
    """
    maps = beliefs.flatten(0, -3).contiguous()
    sums = sum_parts if version is Version.TRITON else load("cells", version).part_sums
    found: Tensor = sums(maps, row_ends, col_ends)
    return found.unflatten(0, beliefs.shape[:-2])


@torch.library.custom_op("marl_framework::sum_parts", mutates_args=())
def sum_parts(maps: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """See `part_sums`; of maps [M, R, C]."""
    check_contiguous(maps)
    sums = _empty(maps, row_ends, col_ends)
    programs, sizes = (len(maps) * len(row_ends),), (*maps.shape[1:], *sums.shape[2:])
    # One warp for a row of parts: its sums need no barrier.
    launch("cells.sum_parts", programs, maps, row_ends, col_ends, sums, *sizes, num_warps=1)
    return sums


@sum_parts.register_fake
def _empty(maps: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    return maps.new_empty(len(maps), 3, len(row_ends), len(col_ends))
