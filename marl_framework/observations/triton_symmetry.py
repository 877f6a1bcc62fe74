"""A batch of turned transitions by one Triton kernel; `turning` launches it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take(
    index,
    which,
    cells,
    turned_actions,
    sources,
    codes,
    observations,
    critic_maps,
    actions,
    masks,
    probabilities,
    targets,
    out_maps,
    out_actions,
    out_masks,
    out_probabilities,
    out_targets,
    CELLS: tl.constexpr,
    SEEN: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
    A: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """Take BLOCK cells of all maps of one transition, and once what is not a map.

    Tensors:
        index, which: the transition and the symmetry that shows it, [B] int64.
        cells: where each cell comes from, [S, CELLS] int64.
        turned_actions: what actions become, [S, A] int64.
        sources: what they come from, [S, A] int64.
        codes: what actions of others become in their map, [S, A + 1].
        observations: [M, SEEN, CELLS].
        critic_maps: [M, OWN, CELLS]; map OTHERS of these shows actions, -1 for none.
        actions, targets: [M].
        masks, probabilities: [M, A].
        out_maps: observations and critic maps, [B, SEEN + OWN, CELLS], written.
        out_actions and others: as they are given, [B] or [B, A], written.
    """
    b = tl.program_id(0).to(tl.int64)
    source, turn = tl.load(index + b), tl.load(which + b)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = cell < CELLS
    origin = tl.load(cells + turn * CELLS + cell, mask=within, other=0)
    out = out_maps + b * ((SEEN + OWN) * CELLS) + cell
    for channel in range(SEEN):
        seen = tl.load(observations + (source * SEEN + channel) * CELLS + origin, mask=within)
        tl.store(out + channel * CELLS, seen, mask=within)
    for channel in range(OWN):
        seen = tl.load(critic_maps + (source * OWN + channel) * CELLS + origin, mask=within)
        if channel == OTHERS:
            # 1 more than the action, 0 for nobody
            action = (seen.to(tl.float32) * A + 0.5).to(tl.int32)
            code = tl.load(codes + turn * (A + 1) + action, mask=within)
            seen = code.to(critic_maps.dtype.element_ty)
        tl.store(out + (SEEN + channel) * CELLS, seen, mask=within)
    if tl.program_id(1) == 0:
        a = tl.arange(0, BLOCK_A)
        known = a < A
        before = tl.load(sources + turn * A + a, mask=known, other=0)
        mask = tl.load(masks + source * A + before, mask=known)
        probability = tl.load(probabilities + source * A + before, mask=known)
        tl.store(out_masks + b * A + a, mask, mask=known)
        tl.store(out_probabilities + b * A + a, probability, mask=known)
        tl.store(out_targets + b, tl.load(targets + source))
        taken = tl.load(turned_actions + turn * A + tl.load(actions + source))
        tl.store(out_actions + b, taken)
