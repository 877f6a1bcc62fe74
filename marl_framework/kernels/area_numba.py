"""Area means in compiled loops, row by row; see `area`.

Weights are computed in whole numbers, without `fastmath`: an axis of `cells` cells has `shares`
equal shares, none smaller than a cell. A cell is `shares` long, a share `cells`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from marl_framework.kernels.loops import FAST

_LANES = 32
_ZERO = np.float32(0.0)


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
    """Round up to whole vectors: the rest of a loop runs cell by cell, far slower."""
    return (cells + _LANES - 1) // _LANES * _LANES


@njit(**FAST)
def _pool_columns(totals, first, last, pooled, cells):
    """Add the sums over rows of cells [first, last) to a row of the pooled map."""
    shares = pooled.size
    y = first * shares // cells
    low, before = y * cells // shares, y * cells % shares
    while y < shares:
        # The share holds the cells [inner_low, high) as a whole, and parts of those beside them.
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
    """Add the changes of the cells of a span [first, last) of a row to the pooled map.

    `rows` are that row and one past the last row; they come one after the other. `totals` holds
    the sums over the rows of a share, which go to the pooled map at the share's end; it is zero
    before the first row. Both buffers are padded. The whole map has the given shape.
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
