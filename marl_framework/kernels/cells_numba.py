"""Compiled loops for cells, area means and sums; see `cells`.

Area weights are computed with integers, without `fastmath`: an axis of `cells` cells is divided
into `shares` equal shares, none smaller than a cell. The axis has cells · shares units:
a cell is `shares` units long and a share `cells`.

`log2` and `entropy` are inlined: as separate functions, they were compiled differently, and rounded
differently, after the same process had compiled another loop.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from marl_framework.kernels.cells import INTEREST_ABOVE, NO_INTEREST_BELOW, PROBABILITY_FLOOR
from marl_framework.kernels.loops import FAST, loop, views

_LANES = 32
_LOW, _HIGH = np.float32(PROBABILITY_FLOOR), np.float32(1 - PROBABILITY_FLOOR)
_INTEREST, _NO_INTEREST = np.float32(INTEREST_ABOVE), np.float32(NO_INTEREST_BELOW)
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_SQRT_HALF_BITS = np.float32(0.5**0.5).view(np.int32)


def _log2_polynomial(degree: int) -> list[np.float32]:
    """Fit log2(1 + t)/t on [1/√2 - 1, √2 - 1] at Chebyshev points, lowest power first."""
    low, high = 0.5**0.5 - 1, 2**0.5 - 1
    nodes = np.cos((np.arange(1000) + 0.5) * np.pi / 1000)
    t = (low + high) / 2 + (high - low) / 2 * nodes
    return [np.float32(c) for c in np.polynomial.polynomial.polyfit(t, np.log2(1 + t) / t, degree)]


_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = _log2_polynomial(8)


@njit(inline="always", **FAST)
def log2(x):
    """Return log2 of a positive normal number, to 1e-7: exponent plus polynomial of the mantissa.

    The mantissa lies in [1/√2, √2), so that results near log2(1) keep their precision.
    """
    bits = np.float32(x).view(np.int32)
    exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> np.int32(23))
    t = np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32) - _ONE
    series = ((_P8 * t + _P7) * t + _P6) * t + _P5
    series = ((series * t + _P4) * t + _P3) * t + _P2
    series = (series * t + _P1) * t + _P0
    return np.float32(exponent) + t * series


@njit(inline="always", **FAST)
def entropy(p):
    """See `cells.entropy`."""
    p = min(max(p, _LOW), _HIGH)
    return -(p * log2(p) + (_ONE - p) * log2(_ONE - p))


@njit(**FAST)
def bayes(p, odds):
    """See `cells.bayes_update`; `odds` are the odds of the reading divided by the prior odds."""
    clamped = min(max(p, _LOW), _HIGH)
    weighed = clamped * odds
    return weighed / (weighed + (_ONE - clamped))


@njit(**FAST)
def uncertainty(p):
    """See `cells.uncertainty`."""
    return min(max(p, _LOW), _HIGH) * entropy(p)


@njit(**FAST)
def weight(p):
    """See `cells.interest_weight`."""
    return (_HALF if p > _INTEREST else _ZERO) + (_HALF if p >= _NO_INTEREST else _ZERO)


@njit
def _weight(overlap, cells):
    return np.float32(overlap / cells)


@njit
def cell_weight(cell, share, cells, shares):
    """Return the weight of a cell in the mean of a share; 0 if they do not overlap."""
    end = min((cell + 1) * shares, (share + 1) * cells)
    return _weight(max(end - max(cell * shares, share * cells), 0), cells)


@njit(**FAST)
def padded(cells):
    """Round up to whole vectors; leftover cells would be processed one by one, far slower."""
    return (cells + _LANES - 1) // _LANES * _LANES


@njit(**FAST)
def _pool_columns(totals, first, last, pooled, cells):
    """Add the row sums of columns [first, last) to one row of the pooled map."""
    shares = pooled.size
    y = first * shares // cells
    low, before = y * cells // shares, y * cells % shares
    while y < shares:
        # The share contains the cells [inner_low, high) entirely, and parts of both neighbours.
        inner_low = low + (before > 0)
        if inner_low - 1 >= last:
            break
        high, after = (y + 1) * cells // shares, (y + 1) * cells % shares
        total = _ZERO
        for c in range(max(inner_low, first), min(high, last)):
            total += totals[c - first]
        total *= _weight(shares, cells)
        if first < inner_low:
            total += _weight(inner_low * shares - y * cells, cells) * totals[inner_low - 1 - first]
        if high >= first and high < last:
            total += _weight(after, cells) * totals[high - first]
        pooled[y] += total
        y, low, before = y + 1, high, after


@njit(**FAST)
def pool_row(change, totals, span, rows, pooled, shape):
    """Add the changes in one map row, at columns `span` = [first, last), to the pooled map.

    Call once per row, in order; `rows` holds the row and one past the last row. `totals` collects
    sums over the rows of a share until the share ends, and must be zero before the first row. Both
    buffers are padded. `shape` is the shape of the whole map.
    """
    (first, last), (r, end) = span, rows
    cells = shape[0]
    shares = pooled.shape[0]
    share = r * shares // cells
    weight = cell_weight(r, share, cells, shares)
    for c in range(change.size):
        totals[c] += weight * change[c]
    share_end = (share + 1) * cells
    if r + 1 == end or (r + 1) * shares >= share_end:
        _pool_columns(totals, first, last, pooled[share], shape[1])
        rest = _ZERO
        if (r + 1) * shares > share_end:
            rest = cell_weight(r, share + 1, cells, shares)
        for c in range(change.size):
            totals[c] = rest * change[c]
        if r + 1 == end and rest > 0:
            _pool_columns(totals, first, last, pooled[share + 1], shape[1])


def part_sums(maps: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """See `cells.part_sums`; maps are [M, R, C]."""
    sums = torch.empty(len(maps), 3, len(row_ends), len(col_ends))
    # The caller may itself be one of several worker threads, with one core each.
    single = torch.get_num_threads() == 1
    (sum_parts if single else sum_parts_in_parallel)(*views(maps, row_ends, col_ends, sums))
    return sums


@loop(nogil=True)
def sum_parts(maps, row_ends, col_ends, sums):
    """Write the sums of all maps on the calling thread; other threads can run meanwhile."""
    for b in range(len(maps)):
        _sum_map(maps[b], row_ends, col_ends, sums[b])


@loop(parallel=True)
def sum_parts_in_parallel(maps, row_ends, col_ends, sums):
    """Write the sums of all maps with all threads."""
    for b in prange(len(maps)):
        _sum_map(maps[b], row_ends, col_ends, sums[b])


@njit(**FAST)
def _sum_map(belief, row_ends, col_ends, sums):
    """Write the sums of one map: sum over the rows of a part, vectorised, then over columns."""
    totals = np.empty((3, belief.shape[1]), np.float32)
    first_row = 0
    for i in range(row_ends.size):
        totals[:] = _ZERO
        for r in range(first_row, row_ends[i]):
            for c in range(belief.shape[1]):
                p = belief[r, c]
                h = entropy(p)
                totals[0, c] += p
                totals[1, c] += h
                totals[2, c] += p * h
        first_row, first = row_ends[i], 0
        for j in range(col_ends.size):
            for k in range(3):
                total = _ZERO
                for c in range(first, col_ends[j]):
                    total += totals[k, c]
                sums[k, i, j] = total
            first = col_ends[j]
