"""The maps that networks see, each network's by one Triton kernel; `team_operators` launches them.

One program draws 16 lattice rows of all channels of one UAV. What the channels are is in
`observations.channels`, whose functions are the kernels' twins. A constant with the name of a
channel is its place among those drawn, -1 where it is off.

Shapes are constants of the compiled code: N UAVs, maps of R × C cells, lattice X × Y × Z. Booleans
come as int8. `boxes` is `Camera.box_table`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.mission.kernels.triton_cells import clamp, entropy, weight


@triton.jit
def _weighted_entropy(p, FAST: tl.constexpr):
    return weight(p) * entropy(clamp(p), FAST)


@triton.jit
def _position(positions, j):
    """Return the lattice indices of UAV j."""
    at = positions + j * 3
    return tl.load(at).to(tl.int32), tl.load(at + 1).to(tl.int32), tl.load(at + 2).to(tl.int32)


# Footprints -------------------------------------------------------------------------------


@triton.jit
def _strips(
    positions,
    active,
    edges,
    CELLS: tl.constexpr,
    Y: tl.constexpr,
    Z: tl.constexpr,
    N: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Cut an axis at its ends and at the edges of all footprints: first and last cell of strips.

    `edges` points at the axis' lower edge in the table of boxes; the upper edge lies beside it.
    Strips that are left over have no cells.
    """
    k = tl.arange(0, BLOCK_S)
    cuts = (k > 0) & (k <= 2 * N)
    upper = tl.where(k > N, 1, 0)
    j = tl.where(cuts, k - 1 - N * upper, 0)
    if MASKED:
        cuts = cuts & (tl.load(active + j) != 0)
    uav = positions + j * 3
    place = (tl.load(uav) * Y + tl.load(uav + 1)) * Z + tl.load(uav + 2)
    cut = tl.load(edges + place * 8 + upper).to(tl.int32)
    cut = tl.where(cuts, cut, tl.where(k == 0, 0, CELLS))
    earlier = (cut[:, None] < cut[None, :]) | (
        (cut[:, None] == cut[None, :]) & (k[:, None] < k[None, :])
    )
    rank = tl.sum(earlier.to(tl.int32), 0)
    start = tl.sum(tl.where(rank[:, None] == k[None, :], cut[:, None], 0), 0)
    end = tl.sum(tl.where(rank[:, None] == k[None, :] + 1, cut[:, None], 0), 0)
    return start, end


@triton.jit
def _covers(edges, place, start, end):
    """Return which strips lie between the edges of one footprint."""
    low, high = tl.load(edges + place * 8).to(tl.int32), tl.load(edges + place * 8 + 1).to(tl.int32)
    return (start >= low) & (end <= high)


@triton.jit
def _shares(start, end, places, CELLS: tl.constexpr, OUTPUTS: tl.constexpr):
    """Return weights of strips in the means over lattice rows or columns, [places, strips].

    0 beyond the lattice.
    """
    width: tl.constexpr = CELLS / OUTPUTS
    low = places[:, None].to(tl.float32) * width
    covered = tl.minimum(end[None, :].to(tl.float32), low + width) - tl.maximum(
        start[None, :].to(tl.float32), low
    )
    on = (places >= 0) & (places < OUTPUTS)
    return tl.where(on[:, None], tl.maximum(covered, 0.0) / width, 0.0)


@triton.jit
def _area_means(values, row_shares, col_shares):
    """Average values on the grid of strips onto the lattice."""
    rows = tl.dot(row_shares, values, input_precision="ieee")
    return tl.dot(rows, tl.trans(col_shares), input_precision="ieee")


# Actor ------------------------------------------------------------------------------------


@triton.jit
def _hears(heard, flying, j, MASKED: tl.constexpr):
    """Return whether a UAV hears UAV j, which may have crashed since it was heard."""
    hears = tl.load(heard + j) != 0
    if MASKED:
        hears &= tl.load(flying + j) != 0
    return hears


@triton.jit
def draw_actor(
    positions,
    t,
    heard,
    beliefs,
    readings,
    pooled_uncertainty,
    boxes,
    cover_x,
    cover_y,
    shift,
    active,
    team_size,
    budget,
    open_share,
    stride,
    out,
    MASKED: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    X: tl.constexpr,
    Y: tl.constexpr,
    Z: tl.constexpr,
    N: tl.constexpr,
    OF_UAV: tl.constexpr,
    FAST: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BUDGET: tl.constexpr,
    AGENT_ID: tl.constexpr,
    POSITION: tl.constexpr,
    ENTROPY: tl.constexpr,
    LOCAL_ENTROPY: tl.constexpr,
    PROBABILITY: tl.constexpr,
    FOOTPRINT: tl.constexpr,
    UNCERTAINTY: tl.constexpr,
    NO_FLY: tl.constexpr,
    CENTRED_ENTROPY: tl.constexpr,
    CENTRED_PROBABILITY: tl.constexpr,
    CENTRED_FOOTPRINT: tl.constexpr,
    CENTRED_UNCERTAINTY: tl.constexpr,
    CENTRED_NO_FLY: tl.constexpr,
):
    """Draw what one UAV knows.

    Tensors:
        positions: [E, N, 3] int64.
        t: moves made, [E] int64.
        heard: [E, N, N].
        beliefs, readings, pooled_uncertainty: own pooled maps, [E, N, X, Y].
        boxes: [X, Y, Z, 8] int64.
        cover_x, cover_y: shares of a footprint's parts on the map, [X, Z, X] and [Y, Z, Y].
        shift: see `belief.reading_shift`, [Z, 2].
        active: UAVs that fly, [E, N]; read where MASKED, else all do.
        team_size: UAVs that flew at the start, [E] int64; likewise.
        budget: moves before the last one, [E] int64.
        open_share: [E, X, Y], `stride` apart; 0: one for all missions.
        out: [E·N, …, X, Y], OF_UAV numbers from one UAV to the next, written.
    """
    index = tl.program_id(0).to(tl.int64)
    e, i = index // N, (index % N).to(tl.int32)
    team, flying = positions + e * (N * 3), active + e * N
    own_x, own_y, own_z = _position(team, i)
    rows, cols = tl.program_id(1) * BLOCK_X + tl.arange(0, BLOCK_X), tl.arange(0, BLOCK_Y)
    x, y = rows[:, None], cols[None, :]
    within = (x < X) & (y < Y)
    at = x * Y + y
    # The same cells of maps with the UAV at the centre.
    far_rows, far_cols = rows - X // 2 + own_x, cols - Y // 2 + own_y
    far_x, far_y = far_rows[:, None], far_cols[None, :]
    on_map = within & (far_x >= 0) & (far_x < X) & (far_y >= 0) & (far_y < Y)
    far = far_x * Y + far_y
    own = index * (X * Y)
    to = out + index * OF_UAV + at
    blank = tl.zeros([BLOCK_X, BLOCK_Y], tl.float32)
    if BUDGET >= 0:
        moves = tl.load(budget + e)
        left = (moves - tl.load(t + e)).to(tl.float32) / moves.to(tl.float32)
        tl.store(to + BUDGET * X * Y, blank + left, mask=within)
    if AGENT_ID >= 0:
        if MASKED:
            size = tl.load(team_size + e).to(tl.int32)
            share = tl.minimum(i + 1, size).to(tl.float32) / size.to(tl.float32)
        else:
            share = (i + 1).to(tl.float32) / N
        tl.store(to + AGENT_ID * X * Y, blank + share, mask=within)
    if POSITION >= 0:
        value = tl.where(on_map, 1.0, 0.0)
        value = tl.where((far_x == own_x) & (far_y == own_y), (own_z + 1.0) / (Z + 1), value)
        for j in range(N):
            if (j != i) & _hears(heard + index * N, flying, j, MASKED):
                other_x, other_y, other_z = _position(team, j)
                there = (far_x == other_x) & (far_y == other_y)
                value = tl.where(there, (other_z + 1.0) / (Z + 1), value)
        tl.store(to + POSITION * X * Y, value, mask=within)
    if (ENTROPY >= 0) | (PROBABILITY >= 0):
        p = tl.load(beliefs + own + at, mask=within, other=0.5)
        if ENTROPY >= 0:
            tl.store(to + ENTROPY * X * Y, _weighted_entropy(p, FAST), mask=within)
        if PROBABILITY >= 0:
            tl.store(to + PROBABILITY * X * Y, clamp(p), mask=within)
    if LOCAL_ENTROPY >= 0:
        up, down = tl.load(shift + own_z * 2), tl.load(shift + own_z * 2 + 1)
        cover = (
            tl.load(cover_x + (own_x * Z + own_z) * X + rows, mask=rows < X, other=0.0)[:, None]
            * tl.load(cover_y + (own_y * Z + own_z) * Y + cols, mask=cols < Y, other=0.0)[None, :]
        )
        read = tl.load(readings + own + at, mask=within, other=0.0)
        p = 0.5 + (up - down) / 2 * cover + (up + down) / 2 * read
        tl.store(to + LOCAL_ENTROPY * X * Y, _weighted_entropy(p, FAST), mask=within)
    if UNCERTAINTY >= 0:
        u = tl.load(pooled_uncertainty + own + at, mask=within, other=0.0)
        tl.store(to + UNCERTAINTY * X * Y, tl.minimum(tl.maximum(u, 0.0), 1.0), mask=within)
    if (CENTRED_ENTROPY >= 0) | (CENTRED_PROBABILITY >= 0):
        p = tl.load(beliefs + own + far, mask=on_map, other=0.5)
        if CENTRED_ENTROPY >= 0:
            value = tl.where(on_map, _weighted_entropy(p, FAST), 0.0)
            tl.store(to + CENTRED_ENTROPY * X * Y, value, mask=within)
        if CENTRED_PROBABILITY >= 0:
            value = tl.where(on_map, clamp(p), 0.0)
            tl.store(to + CENTRED_PROBABILITY * X * Y, value, mask=within)
    if CENTRED_UNCERTAINTY >= 0:
        u = tl.load(pooled_uncertainty + own + far, mask=on_map, other=0.0)
        tl.store(to + CENTRED_UNCERTAINTY * X * Y, tl.minimum(tl.maximum(u, 0.0), 1.0), mask=within)
    if NO_FLY >= 0:
        u = tl.load(open_share + e * stride + at, mask=within, other=0.0)
        tl.store(to + NO_FLY * X * Y, 1 - u, mask=within)
    if CENTRED_NO_FLY >= 0:
        u = tl.load(open_share + e * stride + far, mask=on_map, other=0.0)
        tl.store(to + CENTRED_NO_FLY * X * Y, 1 - u, mask=within)
    if (FOOTPRINT >= 0) | (CENTRED_FOOTPRINT >= 0):
        row_start, row_end = _strips(team, flying, boxes, R, Y, Z, N, MASKED, BLOCK_S)
        col_start, col_end = _strips(team, flying, boxes + 2, C, Y, Z, N, MASKED, BLOCK_S)
        seen = tl.full([BLOCK_S, BLOCK_S], 0.5, tl.float32)
        for turn in range(N + 1):  # the own footprint last: it hides the others
            j = tl.where(turn < N, turn, i)
            if (turn == N) | _hears(heard + index * N, flying, j, MASKED):
                other_x, other_y, other_z = _position(team, j)
                place = (other_x * Y + other_y) * Z + other_z
                in_rows = _covers(boxes, place, row_start, row_end)
                in_cols = _covers(boxes + 2, place, col_start, col_end)
                mark = tl.where(turn < N, 0.0, 1.0)
                seen = tl.where(in_rows[:, None] & in_cols[None, :], mark, seen)
        if FOOTPRINT >= 0:
            value = _area_means(
                seen,
                _shares(row_start, row_end, rows, R, X),
                _shares(col_start, col_end, cols, C, Y),
            )
            tl.store(to + FOOTPRINT * X * Y, value, mask=within)
        if CENTRED_FOOTPRINT >= 0:
            value = _area_means(
                seen,
                _shares(row_start, row_end, far_rows, R, X),
                _shares(col_start, col_end, far_cols, C, Y),
            )
            tl.store(to + CENTRED_FOOTPRINT * X * Y, value, mask=within)


# Critic -----------------------------------------------------------------------------------


@triton.jit
def draw_critic(
    positions,
    actions,
    beliefs,
    pooled_uncertainty,
    boxes,
    active,
    out,
    ACTIONS: tl.constexpr,
    MASKED: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    X: tl.constexpr,
    Y: tl.constexpr,
    Z: tl.constexpr,
    N: tl.constexpr,
    OF_UAV: tl.constexpr,
    FAST: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_S: tl.constexpr,
    GLOBAL_POSITION: tl.constexpr,
    GLOBAL_ENTROPY: tl.constexpr,
    GLOBAL_PROBABILITY: tl.constexpr,
    GLOBAL_FOOTPRINT: tl.constexpr,
    OTHER_ACTIONS: tl.constexpr,
    GLOBAL_UNCERTAINTY: tl.constexpr,
):
    """Draw what only the critic sees of one UAV.

    Tensors:
        positions: [E, N, 3] int64.
        actions: chosen, of ACTIONS, [E, N] int64.
        beliefs, pooled_uncertainty: global pooled maps, [E, X, Y].
        boxes: [X, Y, Z, 8] int64.
        active: UAVs that fly, [E, N]; read where MASKED, else all do.
        out: [E·N, …, X, Y], OF_UAV numbers from one UAV to the next, written.
    """
    index = tl.program_id(0).to(tl.int64)
    e, i = index // N, (index % N).to(tl.int32)
    team, flying = positions + e * (N * 3), active + e * N
    rows, cols = tl.program_id(1) * BLOCK_X + tl.arange(0, BLOCK_X), tl.arange(0, BLOCK_Y)
    x, y = rows[:, None], cols[None, :]
    within = (x < X) & (y < Y)
    at = x * Y + y
    to = out + index * OF_UAV + at
    levels = tl.zeros([BLOCK_X, BLOCK_Y], tl.float32)
    chosen = levels
    for j in range(N):
        other_x, other_y, other_z = _position(team, j)
        there = (x == other_x) & (y == other_y)
        if MASKED:
            there = there & (tl.load(flying + j) != 0)
        levels = tl.where(there, (other_z + 1.0) / Z, levels)
        action = tl.load(actions + e * N + j).to(tl.float32)
        chosen = tl.where(there & (j != i), (action + 1) / ACTIONS, chosen)
    if GLOBAL_POSITION >= 0:
        tl.store(to + GLOBAL_POSITION * X * Y, levels, mask=within)
    if OTHER_ACTIONS >= 0:
        tl.store(to + OTHER_ACTIONS * X * Y, chosen, mask=within)
    if (GLOBAL_ENTROPY >= 0) | (GLOBAL_PROBABILITY >= 0):
        p = tl.load(beliefs + e * (X * Y) + at, mask=within, other=0.5)
        if GLOBAL_ENTROPY >= 0:
            tl.store(to + GLOBAL_ENTROPY * X * Y, _weighted_entropy(p, FAST), mask=within)
        if GLOBAL_PROBABILITY >= 0:
            tl.store(to + GLOBAL_PROBABILITY * X * Y, clamp(p), mask=within)
    if GLOBAL_UNCERTAINTY >= 0:
        u = tl.load(pooled_uncertainty + e * (X * Y) + at, mask=within, other=0.0)
        tl.store(to + GLOBAL_UNCERTAINTY * X * Y, tl.minimum(tl.maximum(u, 0.0), 1.0), mask=within)
    if GLOBAL_FOOTPRINT >= 0:
        row_start, row_end = _strips(team, flying, boxes, R, Y, Z, N, MASKED, BLOCK_S)
        col_start, col_end = _strips(team, flying, boxes + 2, C, Y, Z, N, MASKED, BLOCK_S)
        seen = tl.full([BLOCK_S, BLOCK_S], 0.5, tl.float32)
        for j in range(N):
            other_x, other_y, other_z = _position(team, j)
            place = (other_x * Y + other_y) * Z + other_z
            in_rows = _covers(boxes, place, row_start, row_end)
            in_cols = _covers(boxes + 2, place, col_start, col_end)
            marked = in_rows[:, None] & in_cols[None, :]
            if MASKED:
                marked = marked & (tl.load(flying + j) != 0)
            seen = tl.where(marked, 1.0, seen)
        value = _area_means(
            seen, _shares(row_start, row_end, rows, R, X), _shares(col_start, col_end, cols, C, Y)
        )
        tl.store(to + GLOBAL_FOOTPRINT * X * Y, value, mask=within)
