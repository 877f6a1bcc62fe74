"""Triton kernels that draw network inputs and turn transitions; see `maps`.

One program draws 16 lattice rows of all channels of one UAV. Booleans are passed as int8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.kernels.cells_triton import clamp, entropy, weight
from marl_framework.kernels.maps import CELLS, ROWS

_ROWS, _CELLS = tl.constexpr(ROWS), tl.constexpr(CELLS)


@triton.jit
def _weighted_entropy(p):
    return weight(p) * entropy(clamp(p))


@triton.jit
def _position(positions, j):
    """Return the lattice indices of UAV j."""
    at = positions + j * 3
    return tl.load(at).to(tl.int32), tl.load(at + 1).to(tl.int32), tl.load(at + 2).to(tl.int32)


@triton.jit
def _limited(u):
    """Clamp uncertainty to [0, 1]; see `channels.uncertainty`."""
    return tl.minimum(tl.maximum(u, 0.0), 1.0)


@triton.jit
def _store(to, PLACE: tl.constexpr, value, within, S: tl.constexpr):
    """Write a channel if it is on; the compiler removes values that are never stored."""
    if PLACE >= 0:
        tl.store(to + PLACE * (S.X * S.Y), value, mask=within)


# Footprints -------------------------------------------------------------------------------


@triton.jit
def _strips(positions, active, edges, CELLS: tl.constexpr, S: tl.constexpr):
    """Cut an axis into strips at its ends and at all footprint edges; return starts and ends.

    `edges` points to the axis' lower edge in the table of boxes; the upper edge comes next in
    memory. Unused strips are empty.
    """
    k = tl.arange(0, S.BLOCK_S)
    cuts = (k > 0) & (k <= 2 * S.N)
    upper = tl.where(k > S.N, 1, 0)
    j = tl.where(cuts, k - 1 - S.N * upper, 0)
    if S.masked:
        cuts = cuts & (tl.load(active + j) != 0)
    uav = positions + j * 3
    place = (tl.load(uav) * S.Y + tl.load(uav + 1)) * S.Z + tl.load(uav + 2)
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
def _covers(boxes, team, j, row_strips, col_strips, S: tl.constexpr):
    """Return which cells of the strip grid lie in the footprint of UAV j."""
    row_start, row_end = row_strips
    col_start, col_end = col_strips
    x, y, z = _position(team, j)
    box = boxes + ((x * S.Y + y) * S.Z + z) * 8
    row0, row1 = tl.load(box).to(tl.int32), tl.load(box + 1).to(tl.int32)
    col0, col1 = tl.load(box + 2).to(tl.int32), tl.load(box + 3).to(tl.int32)
    in_rows = (row_start >= row0) & (row_end <= row1)
    in_cols = (col_start >= col0) & (col_end <= col1)
    return in_rows[:, None] & in_cols[None, :]


@triton.jit
def _shares(strips, places, CELLS: tl.constexpr, OUTPUTS: tl.constexpr):
    """Return the weight of each strip in the mean over each lattice place; 0 off the lattice."""
    start, end = strips
    width: tl.constexpr = CELLS / OUTPUTS
    low = places[:, None].to(tl.float32) * width
    covered = tl.minimum(end[None, :].to(tl.float32), low + width) - tl.maximum(
        start[None, :].to(tl.float32), low
    )
    on = (places >= 0) & (places < OUTPUTS)
    return tl.where(on[:, None], tl.maximum(covered, 0.0) / width, 0.0)


@triton.jit
def _area_means(values, row_strips, col_strips, rows, cols, S: tl.constexpr):
    """Average values on the strip grid onto rows and columns of the lattice."""
    means = tl.dot(_shares(row_strips, rows, S.R, S.X), values, input_precision="ieee")
    col_shares = tl.trans(_shares(col_strips, cols, S.C, S.Y))
    return tl.dot(means, col_shares, input_precision="ieee")


# Maps -------------------------------------------------------------------------------------


@triton.jit
def _hears(inputs, index, e, j, S: tl.constexpr):
    """Return whether UAV `index` heard UAV j of its mission e, and j is still active."""
    hears = tl.load(inputs.heard + index * S.N + j) != 0
    if S.masked:
        hears &= tl.load(inputs.active + e * S.N + j) != 0
    return hears


@triton.jit
def draw_actor(inputs, tables, stride, out, S: tl.constexpr, AT: tl.constexpr):
    """Draw the actor's channels for one UAV; `stride` is that of `open_share`, 0 if shared."""
    BLOCK_Y: tl.constexpr = S.BLOCK_Y
    BLOCK_S: tl.constexpr = S.BLOCK_S
    index = tl.program_id(0).to(tl.int64)
    e, i = index // S.N, (index % S.N).to(tl.int32)
    team, boxes = inputs.positions + e * (S.N * 3), tables.boxes
    own_x, own_y, own_z = _position(team, i)
    rows = tl.program_id(1) * _ROWS + tl.arange(0, _ROWS)
    cols = tl.program_id(2) * S.BLOCK_Y + tl.arange(0, S.BLOCK_Y)
    x, y = rows[:, None], cols[None, :]
    within = (x < S.X) & (y < S.Y)
    # Lattice positions of the same output cells in maps centred on the UAV.
    far_rows, far_cols = rows - S.X // 2 + own_x, cols - S.Y // 2 + own_y
    far_x, far_y = far_rows[:, None], far_cols[None, :]
    on_map = within & (far_x >= 0) & (far_x < S.X) & (far_y >= 0) & (far_y < S.Y)
    at, far = x * S.Y + y, far_x * S.Y + far_y
    own = index * (S.X * S.Y)
    to = out + index * S.OF_UAV + at
    blank = tl.zeros([_ROWS, BLOCK_Y], tl.float32)

    moves = tl.load(inputs.budget + e)
    left = (moves - tl.load(inputs.t + e)).to(tl.float32) / moves.to(tl.float32)
    _store(to, AT.budget, blank + left, within, S)
    if S.masked:
        size = tl.load(inputs.team_size + e).to(tl.int32)
        share = tl.minimum(i + 1, size).to(tl.float32) / size.to(tl.float32)
    else:
        share = (i + 1).to(tl.float32) / S.N
    _store(to, AT.agent_id, blank + share, within, S)
    if AT.position >= 0:
        value = tl.where(on_map, 1.0, 0.0)
        value = tl.where((far_x == own_x) & (far_y == own_y), (own_z + 1.0) / (S.Z + 1), value)
        for j in range(S.N):
            if (j != i) & _hears(inputs, index, e, j, S):
                other_x, other_y, other_z = _position(team, j)
                there = (far_x == other_x) & (far_y == other_y)
                value = tl.where(there, (other_z + 1.0) / (S.Z + 1), value)
        _store(to, AT.position, value, within, S)

    p = tl.load(inputs.pooled_beliefs + own + at, mask=within, other=0.5)
    _store(to, AT.entropy, _weighted_entropy(p), within, S)
    _store(to, AT.probability, clamp(p), within, S)
    p = tl.load(inputs.pooled_beliefs + own + far, mask=on_map, other=0.5)
    _store(to, AT.centred_entropy, tl.where(on_map, _weighted_entropy(p), 0.0), within, S)
    _store(to, AT.centred_probability, tl.where(on_map, clamp(p), 0.0), within, S)
    u = tl.load(inputs.pooled_uncertainty + own + at, mask=within, other=0.0)
    _store(to, AT.uncertainty, _limited(u), within, S)
    u = tl.load(inputs.pooled_uncertainty + own + far, mask=on_map, other=0.0)
    _store(to, AT.centred_uncertainty, _limited(u), within, S)
    share = tl.load(inputs.open_share + e * stride + at, mask=within, other=0.0)
    _store(to, AT.no_fly, 1 - share, within, S)
    share = tl.load(inputs.open_share + e * stride + far, mask=on_map, other=0.0)
    _store(to, AT.centred_no_fly, 1 - share, within, S)

    cover_x = tables.cover_x + (own_x * S.Z + own_z) * S.X + rows
    cover_y = tables.cover_y + (own_y * S.Z + own_z) * S.Y + cols
    cover = tl.load(cover_x, mask=rows < S.X, other=0.0)[:, None]
    cover = cover * tl.load(cover_y, mask=cols < S.Y, other=0.0)[None, :]
    up, down = tl.load(tables.shift + own_z * 2), tl.load(tables.shift + own_z * 2 + 1)
    read = tl.load(inputs.pooled_readings + own + at, mask=within, other=0.0)
    p = 0.5 + (up - down) / 2 * cover + (up + down) / 2 * read
    _store(to, AT.local_entropy, _weighted_entropy(p), within, S)

    if (AT.footprint >= 0) | (AT.centred_footprint >= 0):
        flying = inputs.active + e * S.N
        row_strips = _strips(team, flying, boxes, S.R, S)
        col_strips = _strips(team, flying, boxes + 2, S.C, S)
        seen = tl.full([BLOCK_S, BLOCK_S], 0.5, tl.float32)
        for turn in range(S.N + 1):  # own footprint last, on top of all others
            j = tl.where(turn < S.N, turn, i)
            if (turn == S.N) | _hears(inputs, index, e, j, S):
                covered = _covers(boxes, team, j, row_strips, col_strips, S)
                seen = tl.where(covered, tl.where(turn < S.N, 0.0, 1.0), seen)
        means = _area_means(seen, row_strips, col_strips, rows, cols, S)
        _store(to, AT.footprint, means, within, S)
        means = _area_means(seen, row_strips, col_strips, far_rows, far_cols, S)
        _store(to, AT.centred_footprint, means, within, S)


@triton.jit
def draw_critic(inputs, boxes, out, S: tl.constexpr, AT: tl.constexpr, ACTIONS: tl.constexpr):
    """Draw the channels that only the critic sees, for one UAV."""
    BLOCK_Y: tl.constexpr = S.BLOCK_Y
    BLOCK_S: tl.constexpr = S.BLOCK_S
    index = tl.program_id(0).to(tl.int64)
    e, i = index // S.N, (index % S.N).to(tl.int32)
    team, flying = inputs.positions + e * (S.N * 3), inputs.active + e * S.N
    rows = tl.program_id(1) * _ROWS + tl.arange(0, _ROWS)
    cols = tl.program_id(2) * S.BLOCK_Y + tl.arange(0, S.BLOCK_Y)
    x, y = rows[:, None], cols[None, :]
    within = (x < S.X) & (y < S.Y)
    at = x * S.Y + y
    to = out + index * S.OF_UAV + at

    levels = tl.zeros([_ROWS, BLOCK_Y], tl.float32)
    chosen = levels
    for j in range(S.N):
        other_x, other_y, other_z = _position(team, j)
        there = (x == other_x) & (y == other_y)
        if S.masked:
            there = there & (tl.load(flying + j) != 0)
        levels = tl.where(there, (other_z + 1.0) / S.Z, levels)
        action = tl.load(inputs.actions + e * S.N + j).to(tl.float32)
        chosen = tl.where(there & (j != i), (action + 1) / ACTIONS, chosen)
    _store(to, AT.global_position, levels, within, S)
    _store(to, AT.other_actions, chosen, within, S)
    shared = e * (S.X * S.Y) + at
    p = tl.load(inputs.pooled_global + shared, mask=within, other=0.5)
    _store(to, AT.global_entropy, _weighted_entropy(p), within, S)
    _store(to, AT.global_probability, clamp(p), within, S)
    u = tl.load(inputs.pooled_global_uncertainty + shared, mask=within, other=0.0)
    _store(to, AT.global_uncertainty, _limited(u), within, S)
    if AT.global_footprint >= 0:
        row_strips = _strips(team, flying, boxes, S.R, S)
        col_strips = _strips(team, flying, boxes + 2, S.C, S)
        seen = tl.full([BLOCK_S, BLOCK_S], 0.5, tl.float32)
        for j in range(S.N):
            covered = _covers(boxes, team, j, row_strips, col_strips, S)
            if S.masked:
                covered = covered & (tl.load(flying + j) != 0)
            seen = tl.where(covered, 1.0, seen)
        means = _area_means(seen, row_strips, col_strips, rows, cols, S)
        _store(to, AT.global_footprint, means, within, S)


# Windows ----------------------------------------------------------------------------------


@triton.jit
def show(maps, positions, shown, out, S: tl.constexpr):
    """See `maps.show_in_windows`; a program shows one channel of one UAV."""
    uav, channel = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = tl.load(shown.sources + channel)
    if source >= 0:
        way, numbers = tl.load(shown.ways + channel).to(tl.int32), shown.numbers + channel * 3
        beyond = tl.load(numbers + 2)
        cells = tl.arange(0, S.BLOCK)
        within = (cells[:, None] < S.K) & (cells[None, :] < S.K)
        below = maps + (uav * S.MAPS + source) * (S.X * S.Y)
        if way < 0:  # near
            x, y, _ = _position(positions, uav)
            rows, cols = x - S.K // 2 + cells[:, None], y - S.K // 2 + cells[None, :]
            on = within & (rows >= 0) & (rows < S.X) & (cols >= 0) & (cols < S.Y)
            window = tl.where(on, tl.load(below + rows * S.Y + cols, mask=on), beyond)
        else:
            window = _window_means(below, shown, way * S.K, cells, S)
            window = tl.minimum(window * tl.load(numbers), tl.load(numbers + 1))
            outside = shown.outside + cells[:, None] * S.K + cells[None, :]
            window += beyond * tl.load(outside, mask=within)
        to = out + (uav * S.CHANNELS + channel) * (S.K * S.K)
        tl.store(to + cells[:, None] * S.K + cells[None, :], window, mask=within)


@triton.jit
def _window_means(below, shown, first, cells, S: tl.constexpr):
    """Average a map onto a window with the weights that begin in row `first`."""
    BLOCK: tl.constexpr = S.BLOCK
    means, here = tl.zeros([BLOCK, BLOCK], tl.float32), cells < S.K
    for top in range(0, S.X, 16):
        x = top + tl.arange(0, 16)
        strip = tl.zeros([16, BLOCK], tl.float32)
        for left in range(0, S.Y, 32):
            y = left + tl.arange(0, 32)
            on = (x[:, None] < S.X) & (y[None, :] < S.Y)
            part = tl.load(below + x[:, None] * S.Y + y[None, :], mask=on, other=0.0)
            weights = shown.cols + (first + cells[None, :]) * S.Y + y[:, None]
            share = tl.load(weights, mask=(y[:, None] < S.Y) & here[None, :], other=0.0)
            strip = tl.dot(part, share, strip, input_precision="ieee")
        weights = shown.rows + (first + cells[:, None]) * S.X + x[None, :]
        share = tl.load(weights, mask=here[:, None] & (x[None, :] < S.X), other=0.0)
        means = tl.dot(share, strip, means, input_precision="ieee")
    return means


# Symmetries -------------------------------------------------------------------------------


@triton.jit
def take(index, which, tables, flown, out, S: tl.constexpr):
    """Turn a block of cells in all maps of a transition; the first program also turns the rest."""
    b = tl.program_id(0).to(tl.int64)
    source, turn = tl.load(index + b), tl.load(which + b)
    cell = tl.program_id(1) * _CELLS + tl.arange(0, _CELLS)
    within = cell < S.CELLS
    origin = tl.load(tables.cells + turn * S.CELLS + cell, mask=within, other=0)
    to = out.maps + b * ((S.SEEN + S.OWN) * S.CELLS) + cell
    for channel in range(S.SEEN):
        at = (source * S.SEEN + channel) * S.CELLS + origin
        tl.store(to + channel * S.CELLS, tl.load(flown.observations + at, mask=within), mask=within)
    for channel in range(S.OWN):
        at = (source * S.OWN + channel) * S.CELLS + origin
        seen = tl.load(flown.critic_maps + at, mask=within)
        if channel == S.OTHERS:
            # 1 + action; 0 where no UAV is
            action = (seen.to(tl.float32) * S.A + 0.5).to(tl.int32)
            code = tl.load(tables.codes + turn * (S.A + 1) + action, mask=within)
            seen = code.to(flown.critic_maps.dtype.element_ty)
        tl.store(to + (S.SEEN + channel) * S.CELLS, seen, mask=within)
    if tl.program_id(1) == 0:
        a = tl.arange(0, S.BLOCK_A)
        known = a < S.A
        before = source * S.A + tl.load(tables.sources + turn * S.A + a, mask=known, other=0)
        mask = tl.load(flown.masks + before, mask=known)
        probability = tl.load(flown.old_probabilities + before, mask=known)
        tl.store(out.masks + b * S.A + a, mask, mask=known)
        tl.store(out.old_probabilities + b * S.A + a, probability, mask=known)
        tl.store(out.targets + b, tl.load(flown.targets + source))
        taken = tl.load(tables.actions + turn * S.A + tl.load(flown.actions + source))
        tl.store(out.actions + b, taken)
