"""Area means in Triton; see `area`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def share_of(cell, share, CELLS, SHARES):
    """Weight of cells in the means over equal shares of an axis: 0 where they do not overlap.

    Whole numbers: a cell is SHARES long, a share CELLS.
    """
    end = tl.minimum((cell + 1) * SHARES, (share + 1) * CELLS)
    overlap = end - tl.maximum(cell * SHARES, share * CELLS)
    return tl.maximum(overlap, 0).to(tl.float32) / CELLS


@triton.jit
def pool_columns(totals, cols, CELLS, Y: tl.constexpr, BLOCK_Y: tl.constexpr):
    """Average sums over rows [BLOCK_C], at columns `cols` of CELLS, onto Y shares."""
    y = tl.arange(0, BLOCK_Y)
    weights = share_of(cols[:, None], y[None, :], CELLS, Y)
    return tl.sum(totals[:, None] * weights, 0)
