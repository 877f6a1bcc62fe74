"""Triton kernels for cells, area means and sums; see `cells`."""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.kernels.cells import (
    INTEREST_ABOVE,
    NO_INTEREST_BELOW,
    PARTS_AT_ONCE,
    PROBABILITY_FLOOR,
)

# Use the GPU's fast logarithm and reciprocal (error 2^-22); the interpreter has none.
_FAST = tl.constexpr(not triton.knobs.runtime.interpret)
# One warp, and tiles as small as parts: five times as fast on an H200 as 16 x 16 cells a part.
_ROWS, _COLUMNS, _PARTS = tl.constexpr(2), tl.constexpr(16), tl.constexpr(PARTS_AT_ONCE)
_LOW = tl.constexpr(PROBABILITY_FLOOR)
_HIGH = tl.constexpr(1 - PROBABILITY_FLOOR)
_INTEREST = tl.constexpr(INTEREST_ABOVE)
_NO_INTEREST = tl.constexpr(NO_INTEREST_BELOW)


@triton.jit
def _log2(x):
    if _FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)


@triton.jit
def _ratio(a, b):
    if _FAST:
        return a * tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [b], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return a / b


@triton.jit
def clamp(p):
    """See `cells.clamp_probability`."""
    return tl.minimum(tl.maximum(p, _LOW), _HIGH)


@triton.jit
def bayes(p, odds):
    """See `cells.bayes_update`; `odds` are the odds of the reading divided by the prior odds."""
    q = clamp(p)
    weighed = q * odds
    return _ratio(weighed, weighed + (1.0 - q))


@triton.jit
def entropy(q):
    """See `cells.entropy`; q must be clamped."""
    return -(q * _log2(q) + (1.0 - q) * _log2(1.0 - q))


@triton.jit
def weight(p):
    """See `cells.interest_weight`."""
    return tl.where(p > _INTEREST, 0.5, 0.0) + tl.where(p >= _NO_INTEREST, 0.5, 0.0)


@triton.jit
def share_of(cell, share, CELLS, SHARES):
    """Return the weight of a cell in the mean over a share of the axis; 0 without overlap.

    Computed with integers: a cell is SHARES long and a share CELLS; see `cells_numba`.
    """
    end = tl.minimum((cell + 1) * SHARES, (share + 1) * CELLS)
    overlap = end - tl.maximum(cell * SHARES, share * CELLS)
    return tl.maximum(overlap, 0).to(tl.float32) / CELLS


@triton.jit
def pool_columns(totals, cols, first, CELLS, Y: tl.constexpr, BLOCK_Y: tl.constexpr):
    """Average row sums [BLOCK_C], at columns `cols` of CELLS, onto some of Y equal shares."""
    y = first + tl.arange(0, BLOCK_Y)
    weights = share_of(cols[:, None], y[None, :], CELLS, Y)
    return tl.sum(totals[:, None] * weights, 0)


@triton.jit
def sum_parts(beliefs, row_ends, col_ends, sums, R, C, P, Q):
    """Write the sums of `_PARTS` parts, in one row of parts of one map."""
    groups = tl.cdiv(Q, _PARTS)
    group, i = tl.program_id(0) % groups, tl.program_id(0) // groups % P
    index = (tl.program_id(0) // groups // P).to(tl.int64)
    first = tl.load(row_ends + i - 1, mask=i > 0, other=0).to(tl.int32)
    last = tl.load(row_ends + i).to(tl.int32)
    q = group * _PARTS + tl.arange(0, _PARTS)
    begin = tl.load(col_ends + q - 1, mask=(q > 0) & (q < Q), other=0).to(tl.int32)
    end = tl.load(col_ends + q, mask=q < Q, other=0).to(tl.int32)
    leftmost = tl.load(col_ends + group * _PARTS - 1, mask=group > 0, other=0).to(tl.int32)
    rightmost = tl.load(col_ends + tl.minimum(group * _PARTS + _PARTS, Q) - 1).to(tl.int32)
    belief = beliefs + index * R * C
    believed = tl.zeros([_PARTS], tl.float32)
    unsure, both = believed, believed
    for c0 in range(leftmost, rightmost, _COLUMNS):
        cols = c0 + tl.arange(0, _COLUMNS)
        blank = tl.zeros([_ROWS, _COLUMNS], tl.float32)
        cells, cells_unsure, cells_both = blank, blank, blank
        for r0 in range(first, last, _ROWS):
            rows = r0 + tl.arange(0, _ROWS)
            inside = (rows < last)[:, None] & (cols < rightmost)[None, :]
            p = tl.load(belief + (rows[:, None] * C + cols[None, :]), mask=inside, other=0.0)
            h = tl.where(inside, entropy(clamp(p)), 0.0)
            cells += p
            cells_unsure += h
            cells_both += p * h
        member = (cols[:, None] >= begin[None, :]) & (cols[:, None] < end[None, :])
        believed += _sum_members(cells, member)
        unsure += _sum_members(cells_unsure, member)
        both += _sum_members(cells_both, member)
    out = sums + index * 3 * P * Q + i * Q + q
    tl.store(out, believed, mask=q < Q)
    tl.store(out + P * Q, unsure, mask=q < Q)
    tl.store(out + 2 * P * Q, both, mask=q < Q)


@triton.jit
def _sum_members(cells, member):
    """Sum cells [rows, columns] by part; `member` [columns, parts] says which columns count."""
    return tl.sum(tl.where(member, tl.sum(cells, 0)[:, None], 0.0), 0)
