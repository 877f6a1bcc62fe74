"""Sums over parts of the map in Triton; see `parts`."""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.kernels.cells_triton import clamp, entropy


@triton.jit
def sum_parts(
    beliefs,
    row_ends,
    col_ends,
    sums,
    R,
    C,
    P,
    Q,
    FAST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add up a row of parts of one map."""
    i = tl.program_id(0) % P
    index = (tl.program_id(0) // P).to(tl.int64)
    first = tl.load(row_ends + i - 1, mask=i > 0, other=0).to(tl.int32)
    last = tl.load(row_ends + i).to(tl.int32)
    belief, out = beliefs + index * R * C, sums + index * 3 * P * Q + i * Q
    begin = 0
    for q in range(Q):
        end = tl.load(col_ends + q).to(tl.int32)
        blank = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
        believed, unsure, both = blank, blank, blank
        for r0 in range(first, last, BLOCK_R):
            rows = r0 + tl.arange(0, BLOCK_R)[:, None]
            for c0 in range(begin, end, BLOCK_C):
                cols = c0 + tl.arange(0, BLOCK_C)[None, :]
                inside = (rows < last) & (cols < end)
                p = tl.load(belief + (rows * C + cols), mask=inside, other=0.0)
                h = tl.where(inside, entropy(clamp(p), FAST), 0.0)
                believed += p
                unsure += h
                both += p * h
        tl.store(out + q, tl.sum(tl.sum(believed, 1), 0))
        tl.store(out + P * Q + q, tl.sum(tl.sum(unsure, 1), 0))
        tl.store(out + 2 * P * Q + q, tl.sum(tl.sum(both, 1), 0))
        begin = end
