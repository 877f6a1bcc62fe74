"""Philox4x32-10 in Triton; see `words`."""

from __future__ import annotations

import triton
import triton.language as tl

_CELLS = tl.constexpr(8)  # of 16 bits for each counter


@triton.jit
def window_bits(key, i, rows, first_col, S: tl.constexpr, COLS: tl.constexpr):
    """Draw the bits of a tile of the window of UAV i; see `words.window_bits`."""
    columns = tl.arange(0, COLS // _CELLS) + first_col // _CELLS
    wide: tl.constexpr = (S.KY + _CELLS - 1) // _CELLS
    a, b, c, d = tl.randint4x(key, (i * S.KX + rows)[:, None] * wide + columns[None, :])
    # Cells 0 and 1 from a, 2 and 3 from b, …: first those of even number, then the odd ones.
    low = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    drawn = tl.interleave(low & 0xFFFF, low >> 16)
    return drawn.to(tl.uint16).to(tl.int16, bitcast=True)
