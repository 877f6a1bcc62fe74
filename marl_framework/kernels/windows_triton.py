"""Triton kernels for footprint windows; see `windows`.

One program handles one lattice row: it owns all cell rows of the map that begin there. Thus each
cell is updated by one program in a fixed order; there are no atomic sums, and results are
reproducible bit by bit. If two lattice rows share a cell row, its second share goes to a carry row
that `add_parts` adds later. Booleans are passed as int8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.kernels import cells_triton as cells

# Tile sizes were chosen once, by counting registers and on an H100: autotuned kernels cannot be
# recorded in CUDA graphs, and their results are not reproducible.
_ROWS, _COLS = tl.constexpr(16), tl.constexpr(32)
_HIGH, _WIDE = tl.constexpr(8), tl.constexpr(64)  # of `fuse`: a column of cells per thread
_PART = tl.constexpr(16)  # lattice columns at once, where more than twice as many would spill
_CELLS = tl.constexpr(8)  # cells per counter of random bits

# Footprints -------------------------------------------------------------------------------


@triton.jit
def _load_box(box):
    """Return the visible rows and columns of a box: row0, row1, col0, col1."""
    row0, row1 = tl.load(box).to(tl.int32), tl.load(box + 1).to(tl.int32)
    col0, col1 = tl.load(box + 2).to(tl.int32), tl.load(box + 3).to(tl.int32)
    return row0, row1, col0, col1


# Readings ---------------------------------------------------------------------------------


@triton.jit
def window_bits(key, i, rows, first_col, S: tl.constexpr):
    """Draw the bits of a tile of the window of UAV i; see `windows.window_bits`."""
    columns = tl.arange(0, _COLS // _CELLS) + first_col // _CELLS
    wide: tl.constexpr = (S.KY + _CELLS - 1) // _CELLS
    a, b, c, d = tl.randint4x(key, (i * S.KX + rows)[:, None] * wide + columns[None, :])
    # Cells 0 and 1 come from a, 2 and 3 from b, …: even cells use the low bits, odd cells the high.
    low = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    drawn = tl.interleave(low & 0xFFFF, low >> 16)
    return drawn.to(tl.uint16).to(tl.int16, bitcast=True)


@triton.jit
def read(
    truth, bits, flip_below, boxes, sides, shift, field, active, readings, pooled, S: tl.constexpr
):
    """See `windows.read`; a program handles one row of parts of an unclipped footprint.

    Cells that two rows of parts share are read twice and written once.
    """
    BLOCK_Y: tl.constexpr = S.BLOCK_Y
    x = tl.program_id(0) % S.X
    uav = (tl.program_id(0) // S.X).to(tl.int64)
    e = uav // S.N
    if tl.load(active + e) != 0:
        box = boxes + uav * 8
        row0, row1, col0, col1 = _load_box(box)
        window_row, window_col = tl.load(box + 4).to(tl.int32), tl.load(box + 5).to(tl.int32)
        top, left = tl.load(box + 6).to(tl.int32), tl.load(box + 7).to(tl.int32)
        side_x = tl.load(sides + uav * 2).to(tl.int32)
        side_y = tl.load(sides + uav * 2 + 1).to(tl.int32)
        flip_other, flip_interest = tl.load(flip_below + uav * 2), tl.load(flip_below + uav * 2 + 1)
        if S.shifts:
            down = tl.load(shift + uav * 2).to(tl.int32)
            right = tl.load(shift + uav * 2 + 1).to(tl.int32)
        if S.keys:
            i, key = (uav % S.N).to(tl.int32), tl.load(bits + e)
        low = tl.maximum(top + x * side_x // S.X, row0)
        high = tl.minimum(top + ((x + 1) * side_x + S.X - 1) // S.X, row1)
        # Window rows that this program clears outside the footprint.
        blank_low, blank_high = x * S.KX // S.X, (x + 1) * S.KX // S.X
        below = truth + e * (S.R * S.C)
        window = uav * (S.KX * S.KY)
        means = tl.zeros([BLOCK_Y], tl.float32)
        for c0 in range(0, S.KY, _COLS):
            window_cols = c0 + tl.arange(0, _COLS)
            cols = window_cols + window_col
            in_window = window_cols < S.KY
            in_cols = (cols >= col0) & (cols < col1)
            sees = (window_col + c0 < col1) & (window_col + c0 + _COLS > col0)
            totals = tl.zeros([_ROWS, _COLS], tl.float32)
            for r0 in range(low, high, _ROWS):
                rows = r0 + tl.arange(0, _ROWS)
                inside = (rows < high)[:, None] & in_cols[None, :]
                at = (rows - window_row)[:, None] * S.KY + window_cols[None, :]
                if S.shifts:
                    seen_rows = tl.minimum(tl.maximum(rows + down, 0), S.R - 1)
                    seen_cols = tl.minimum(tl.maximum(cols + right, 0), S.C - 1)
                    cell = below + (seen_rows[:, None] * S.C + seen_cols[None, :])
                else:
                    cell = below + (rows[:, None] * S.C + cols[None, :])
                interest = tl.load(cell, mask=inside, other=0) != 0
                if S.keys:
                    drawn = tl.zeros([_ROWS, _COLS], tl.int16)
                    if sees:
                        drawn = window_bits(key, i, rows - window_row, c0, S)
                else:
                    drawn = tl.load(bits + window + at, mask=inside, other=0)
                flipped = drawn < tl.where(interest, flip_interest, flip_other)
                sign = tl.where(inside, tl.where(interest != flipped, 1, -1), 0)
                if S.field:
                    counted = field + e * (S.R * S.C) + (rows[:, None] * S.C + cols[None, :])
                    sign = tl.where(tl.load(counted, mask=inside, other=1) != 0, sign, -1)
                begins = (rows < high) & ((rows - top) * S.X // side_x == x)
                tl.store(
                    readings + window + at,
                    sign.to(tl.int8),
                    mask=begins[:, None] & in_window[None, :],
                )
                share = cells.share_of(rows - top, x, side_x, S.X)
                totals += sign.to(tl.float32) * share[:, None]
            means += cells.pool_columns(tl.sum(totals, 0), cols - left, 0, side_y, S.Y, S.BLOCK_Y)
            for r0 in range(blank_low, blank_high, _ROWS):
                window_rows = r0 + tl.arange(0, _ROWS)
                rows = window_rows + window_row
                blank = (window_rows < blank_high) & ((rows < row0) | (rows >= row1))
                tl.store(
                    readings + window + (window_rows[:, None] * S.KY + window_cols[None, :]),
                    tl.zeros([_ROWS, _COLS], tl.int8),
                    mask=blank[:, None] & in_window[None, :],
                )
        y = tl.arange(0, S.BLOCK_Y)
        tl.store(pooled + (uav * S.X + x) * S.Y + y, means, mask=y < S.Y)


# Beliefs ----------------------------------------------------------------------------------


@triton.jit
def _takes(turns, heard, S: tl.constexpr):
    """Return whether a map takes the reading of each turn; `heard` points to the turn's UAV."""
    if S.team:
        return turns < S.N
    elif S.heard:
        hears = tl.load(heard, mask=(turns > 0) & (turns < S.N), other=0) != 0
        return hears | (turns == 0) if S.own else hears
    else:
        return turns == 0


@triton.jit
def _fuse_reading(p, readings, odds, boxes, uav, rows, cols, end, S: tl.constexpr):
    """Fuse the reading of one UAV into the cells of a tile, up to row `end`, in its footprint."""
    box = boxes + uav * 8
    row0, row1, col0, col1 = _load_box(box)
    window_row, window_col = tl.load(box + 4).to(tl.int32), tl.load(box + 5).to(tl.int32)
    in_rows = (rows >= row0) & (rows < tl.minimum(row1, end))
    inside = in_rows[:, None] & ((cols >= col0) & (cols < col1))[None, :]
    at = (rows - window_row)[:, None] * S.KY + (cols - window_col)[None, :]
    sign = tl.load(readings + uav * (S.KX * S.KY) + at, mask=inside, other=0)
    odd = tl.where(sign > 0, tl.load(odds + uav * 2), tl.load(odds + uav * 2 + 1))
    return tl.where(inside, cells.bayes(p, odd), p)


@triton.jit
def _pool(change, cols, c0, S: tl.constexpr):
    """Average the row-weighted changes of columns, `c0` and next, onto the lattice columns."""
    BLOCK_Y: tl.constexpr = S.BLOCK_Y
    if BLOCK_Y <= 2 * _PART:
        return cells.pool_columns(change, cols, 0, S.C, S.Y, BLOCK_Y)
    means = tl.zeros([BLOCK_Y // _PART, _PART], tl.float32)
    part = tl.arange(0, BLOCK_Y // _PART)[:, None]
    first, last = c0 * S.Y // S.C, tl.minimum(((c0 + _WIDE) * S.Y - 1) // S.C, S.Y - 1)
    for k in range(first // _PART, last // _PART + 1):
        some = cells.pool_columns(change, cols, k * _PART, S.C, S.Y, _PART)
        means = tl.where(part == k, some[None, :], means)
    return tl.reshape(means, [BLOCK_Y])


@triton.jit
def fuse(readings, heard, boxes, odds, active, beliefs, parts, sums, prior, S: tl.constexpr):
    """Fuse readings into maps, each cell once; write the resulting changes of the pooled maps.

    Each mission has M maps: either one for the team, which takes all readings, or one per UAV,
    which takes the UAV's own reading and then heard readings, by id. Each thread has its own
    columns of a tile, so sums over rows need no exchange between threads.

    Tensors (for the others, see the operators):
        beliefs: [E, M, R, C], updated; if `blank`, written entirely without being read.
        parts: changes of the pooled map and, if `tracks`, of the pooled uncertainty, in this
            lattice row and in the next, [2, E, M, X, 2, Y], written.
        sums: partial sums of `windows.fuse_global`, [E, X, 3] float64, written for the team.
    """
    BLOCK_Y: tl.constexpr = S.BLOCK_Y
    MAPS: tl.constexpr = 1 if S.team else S.N
    x = tl.program_id(0) % S.X
    index = (tl.program_id(0) // S.X).to(tl.int64)
    e, i = index // MAPS, (index % MAPS).to(tl.int32)
    first, last = (x * S.R + S.X - 1) // S.X, ((x + 1) * S.R + S.X - 1) // S.X
    # The footprints by turn: by id, but the map's own UAV first.
    turns = tl.arange(0, S.BLOCK_N)
    uavs = turns if S.team else tl.where(turns == 0, i, tl.where(turns <= i, turns - 1, turns))
    box, known = boxes + (e * S.N + uavs) * 8, turns < S.N
    row0 = tl.maximum(tl.load(box, mask=known, other=0).to(tl.int32), first)
    row1 = tl.minimum(tl.load(box + 1, mask=known, other=0).to(tl.int32), last)
    col0 = tl.load(box + 2, mask=known, other=0).to(tl.int32)
    col1 = tl.load(box + 3, mask=known, other=0).to(tl.int32)
    runs = tl.load(active + e) != 0
    takes = _takes(turns, heard + index * S.N + uavs, S) & (row0 < row1) & (col0 < col1) & runs
    if S.blank:
        low_r, high_r, low_c, high_c = first, tl.where(runs, last, first), 0, S.C
    else:  # the bounding rectangle of all footprints within these rows
        low_r, high_r = tl.min(tl.where(takes, row0, last)), tl.max(tl.where(takes, row1, first))
        low_c, high_c = tl.min(tl.where(takes, col0, S.C)), tl.max(tl.where(takes, col1, 0))
    row, columns = tl.zeros([BLOCK_Y], tl.float32), tl.zeros([_WIDE], tl.float32)
    own, carry, own_uncertainty, uncertainty_carry = row, row, row, row
    gains, reweights, removals = columns, columns, columns
    mine = beliefs + index * (S.R * S.C)
    for c0 in range(low_c, high_c, _WIDE):
        cols = c0 + tl.arange(0, _WIDE)
        total, below, uncertainty, uncertainty_below = columns, columns, columns, columns
        for r0 in range(low_r, high_r, _HIGH):
            rows = r0 + tl.arange(0, _HIGH)
            at = mine + (rows[:, None] * S.C + cols[None, :])
            near = takes & (row0 < r0 + _HIGH) & (row1 > r0) & (col0 < c0 + _WIDE) & (col1 > c0)
            turn = tl.min(tl.where(near, turns, S.N))
            if S.blank | (turn < S.N):  # the rectangle may have gaps
                within = (rows < high_r)[:, None] & (cols < high_c)[None, :]
                if S.blank:
                    old = tl.zeros([_HIGH, _WIDE], tl.float32) + prior
                else:
                    old = tl.load(at, mask=within, other=0.5)
                new = old
                while turn < S.N:
                    uav = e * S.N + tl.sum(tl.where(turns == turn, uavs, 0))
                    new = _fuse_reading(new, readings, odds, boxes, uav, rows, cols, last, S)
                    turn = tl.min(tl.where(near & (turns > turn), turns, S.N))
                tl.store(at, new, mask=within)
                here = cells.share_of(rows, x, S.R, S.X)[:, None]
                there = cells.share_of(rows, x + 1, S.R, S.X)[:, None]
                shared = r0 + _HIGH >= last  # the last cell row overlaps the next lattice row
                change = new - old
                total += tl.sum(change * here, 0)
                if shared:
                    below += tl.sum(change * there, 0)
                if S.team or S.tracks:
                    q_old, q_new = cells.clamp(old), cells.clamp(new)
                    h_old, h_new = cells.entropy(q_old), cells.entropy(q_new)
                    if S.team:
                        w_new = cells.weight(new)
                        less = h_old - h_new
                        removals += tl.sum(less, 0)
                        gains += tl.sum(w_new * less, 0)
                        reweights += tl.sum((w_new - cells.weight(old)) * h_old, 0)
                    if S.tracks:
                        change = q_new * h_new - q_old * h_old
                        uncertainty += tl.sum(change * here, 0)
                        if shared:
                            uncertainty_below += tl.sum(change * there, 0)
        own += _pool(total, cols, c0, S)
        carry += _pool(below, cols, c0, S)
        if S.tracks:
            own_uncertainty += _pool(uncertainty, cols, c0, S)
            uncertainty_carry += _pool(uncertainty_below, cols, c0, S)
    y = tl.arange(0, S.BLOCK_Y)
    out = (index * S.X + x) * (2 * S.Y) + y
    tl.store(parts + out, own, mask=y < S.Y)
    tl.store(parts + out + S.Y, carry, mask=y < S.Y)
    if S.tracks:
        out += tl.num_programs(0).to(tl.int64) * (2 * S.Y)
        tl.store(parts + out, own_uncertainty, mask=y < S.Y)
        tl.store(parts + out + S.Y, uncertainty_carry, mask=y < S.Y)
    if S.team:
        out = sums + (index * S.X + x) * 3
        tl.store(out, tl.sum(gains.to(tl.float64), 0))
        tl.store(out + 1, tl.sum(reweights.to(tl.float64), 0))
        tl.store(out + 2, tl.sum(removals.to(tl.float64), 0))


@triton.jit
def _add(parts, pooled, index, S: tl.constexpr, BLOCK_X: tl.constexpr):
    HIGH: tl.constexpr = max(1, min(BLOCK_X, 2048 // S.BLOCK_Y))
    y = tl.arange(0, S.BLOCK_Y)[None, :]
    for x0 in range(0, S.X, HIGH):
        x = x0 + tl.arange(0, HIGH)[:, None]
        within = (x < S.X) & (y < S.Y)
        part = parts + (index * S.X + x) * (2 * S.Y) + y
        own = tl.load(part, mask=within, other=0.0)
        carry = tl.load(part - S.Y, mask=within & (x > 0), other=0.0)
        at = pooled + index * (S.X * S.Y) + x * S.Y + y
        tl.store(at, tl.load(at, mask=within) + (own + carry), mask=within)


@triton.jit
def add_parts(
    parts, sums, pooled, pooled_uncertainty, totals, S: tl.constexpr, BLOCK_X: tl.constexpr
):
    """Add `parts` from `fuse` to the pooled maps [E, M, X, Y] of one map; write `totals` [3, E]."""
    index = tl.program_id(0).to(tl.int64)
    _add(parts, pooled, index, S, BLOCK_X)
    if S.tracks:
        uncertainty_parts = parts + tl.num_programs(0).to(tl.int64) * (2 * S.X * S.Y)
        _add(uncertainty_parts, pooled_uncertainty, index, S, BLOCK_X)
    if S.team:
        x = tl.arange(0, BLOCK_X)
        for k in tl.static_range(3):
            part = tl.load(sums + (index * S.X + x) * 3 + k, mask=x < S.X, other=0.0)
            tl.store(totals + tl.num_programs(0) * k + index, tl.sum(part, 0))
