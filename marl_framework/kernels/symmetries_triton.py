"""Turned transitions in Triton; see `symmetries`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take(
    index,
    which,
    tables,
    flown,
    out,
    CELLS: tl.constexpr,
    SEEN: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
    A: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """Take BLOCK cells of all maps of one transition, and once all but its maps."""
    b = tl.program_id(0).to(tl.int64)
    source, turn = tl.load(index + b), tl.load(which + b)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = cell < CELLS
    origin = tl.load(tables.cells + turn * CELLS + cell, mask=within, other=0)
    to = out.maps + b * ((SEEN + OWN) * CELLS) + cell
    for channel in range(SEEN):
        at = (source * SEEN + channel) * CELLS + origin
        tl.store(to + channel * CELLS, tl.load(flown.observations + at, mask=within), mask=within)
    for channel in range(OWN):
        seen = tl.load(flown.critic_maps + (source * OWN + channel) * CELLS + origin, mask=within)
        if channel == OTHERS:
            # 1 more than the action, 0 for nobody
            action = (seen.to(tl.float32) * A + 0.5).to(tl.int32)
            code = tl.load(tables.codes + turn * (A + 1) + action, mask=within)
            seen = code.to(flown.critic_maps.dtype.element_ty)
        tl.store(to + (SEEN + channel) * CELLS, seen, mask=within)
    if tl.program_id(1) == 0:
        a = tl.arange(0, BLOCK_A)
        known = a < A
        before = source * A + tl.load(tables.sources + turn * A + a, mask=known, other=0)
        mask = tl.load(flown.masks + before, mask=known)
        probability = tl.load(flown.old_probabilities + before, mask=known)
        tl.store(out.masks + b * A + a, mask, mask=known)
        tl.store(out.old_probabilities + b * A + a, probability, mask=known)
        tl.store(out.targets + b, tl.load(flown.targets + source))
        taken = tl.load(tables.actions + turn * A + tl.load(flown.actions + source))
        tl.store(out.actions + b, taken)
