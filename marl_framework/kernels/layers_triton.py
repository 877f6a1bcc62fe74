"""Triton kernel for layers of networks; see `layers`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rectify(rows, bias, number, C: tl.constexpr, WIDE: tl.constexpr, HIGH: tl.constexpr):
    """Add a bias to some rows of C numbers, and replace negative numbers by 0; NaN stays."""
    row, col = tl.program_id(0) * HIGH + tl.arange(0, HIGH), tl.arange(0, WIDE)
    at = rows + row.to(tl.int64)[:, None] * C + col[None, :]
    within = (row < number)[:, None] & (col < C)[None, :]
    added = tl.load(bias + col, mask=col < C, other=0).to(tl.float32)[None, :]
    values = tl.load(at, mask=within, other=0).to(tl.float32) + added
    tl.store(at, tl.where(values < 0, 0.0, values), mask=within)
