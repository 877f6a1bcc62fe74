"""The loops over footprint windows, compiled for the CPU by numba.

A step changes the cells under the footprints alone. Plain PyTorch moves these windows through
memory for each operation; the loops read, update, pool and write each cell once. Arrays are views
of the tensors' memory. Missions (or UAVs) run in parallel and write to memory of their own:
results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from marl_framework.mission.kernels.division import Division
from marl_framework.mission.kernels.scalars import FAST, HIGH, LOW, entropy, forget_outdated

Array = Any  # numba compiles for the arrays it is given; see cpu.py for their shapes

_ONE = np.float32(1.0)
_HALF = np.float32(0.5)
_INTEREST = np.float32(0.501)
_NO_INTEREST = np.float32(0.499)
_LANES = 32


@njit(**FAST)
def _bayes(p: Array, odds: Array) -> Array:
    clamped = min(max(p, LOW), HIGH)
    weighed = clamped * odds
    return weighed / (weighed + (_ONE - clamped))


@njit(**FAST)
def _uncertainty(p: Array) -> Array:
    return min(max(p, LOW), HIGH) * entropy(p)


@njit(**FAST)
def _weight(p: Array) -> Array:
    return (_HALF if p > _INTEREST else np.float32(0.0)) + (
        _HALF if p >= _NO_INTEREST else np.float32(0.0)
    )


@njit(**FAST)
def _padded(cells: int) -> int:
    """Round up to whole vectors: the rest of a loop runs cell by cell, far slower."""
    return (cells + _LANES - 1) // _LANES * _LANES


@njit(**FAST)
def _pool_columns(totals: Array, first: int, last: int, pooled: Array, cols: Array) -> None:
    """Add the sums over rows of cells [first, last) to a row of the pooled map."""
    for y in range(cols.bins[first, 0], cols.inner_low.size):
        inner_low, inner_high = cols.inner_low[y], cols.inner_high[y]
        if inner_low - 1 >= last:
            break
        total = np.float32(0.0)
        for c in range(max(inner_low, first), min(inner_high, last)):
            total += totals[c - first]
        total *= cols.inner
        if first < inner_low:
            total += cols.left[y] * totals[inner_low - 1 - first]
        if inner_high >= first and inner_high < last:
            total += cols.right[y] * totals[inner_high - first]
        pooled[y] += total


@njit(**FAST)
def _pool_row(
    change: Array,
    totals: Array,
    first: int,
    last: int,
    r: int,
    end: int,
    pooled: Array,
    axes: Array,
) -> None:
    """Add the changes of cells [first, last) of row r to the pooled map.

    Rows come one after the other up to `end`. `totals` holds the sums over those of a share,
    which go to the pooled map where the share ends; it is zero before the first row. Both buffers
    are padded. `axes` says how the lattice divides rows and columns, see `division.Division`.
    """
    rows, cols = axes
    share, weight, rest = rows.bins[r, 0], rows.weights[r, 0], rows.weights[r, 1]
    for c in range(change.size):
        totals[c] += weight * change[c]
    if r + 1 == end or rows.bins[r + 1, 0] != share:
        _pool_columns(totals, first, last, pooled[share], cols)
        for c in range(change.size):
            totals[c] = rest * change[c]
        if r + 1 == end and rest > 0:
            _pool_columns(totals, first, last, pooled[rows.bins[r, 1]], cols)


@njit(**FAST)
def _fuse_window(
    belief: Array,
    pooled: Array,
    pooled_uncertainty: Array,
    signs: Array,
    box: Array,
    odds: Array,
    axes: Array,
    tracks: bool,
) -> None:
    """Update one map with one reading; for `box` see `cpu.WindowLoops.measure`."""
    first, last, end = box[2], box[3], box[1]
    if first >= last:
        return
    width = last - first
    size = _padded(width)
    change, totals = np.zeros(size, np.float32), np.zeros(size, np.float32)
    uncertainty_totals = np.zeros(size, np.float32)
    for r in range(box[0], end):
        line = belief[r, first:last]
        seen = signs[r - box[4], first - box[5] : last - box[5]]
        for c in range(width):
            before = line[c]
            line[c] = _bayes(before, odds[0] if seen[c] > 0 else odds[1])
            change[c] = line[c] - before
        _pool_row(change, totals, first, last, r, end, pooled, axes)
        if tracks:
            for c in range(width):
                change[c] = _uncertainty(line[c]) - _uncertainty(line[c] - change[c])
            _pool_row(change, uncertainty_totals, first, last, r, end, pooled_uncertainty, axes)


@njit(**FAST)
def _of_level(divisions: Array, level: int) -> Array:
    return Division(
        divisions.bins[level],
        divisions.weights[level],
        divisions.inner_low[level],
        divisions.inner_high[level],
        divisions.left[level],
        divisions.right[level],
        divisions.inner[level],
    )


@njit(**FAST)
def _read(
    truth: Array,
    bits: Array,
    flip_below: Array,
    box: Array,
    signs: Array,
    pooled: Array,
    axes: Array,
    pools: bool,
) -> None:
    """Take one reading, and average it over the parts of the unclipped footprint square."""
    signs[:, :] = 0
    pooled[:, :] = 0.0
    first, last = box[2], box[3]
    if first >= last:
        return
    size = _padded(last - first)
    read, totals = np.zeros(size, np.float32), np.zeros(size, np.float32)
    false_alarm, miss = flip_below[0], flip_below[1]
    for r in range(box[0], box[1]):
        below = truth[r, first:last]
        drawn = bits[r - box[4], first - box[5] : last - box[5]]
        seen = signs[r - box[4], first - box[5] : last - box[5]]
        for c in range(seen.size):
            limit = miss if below[c] else false_alarm
            seen[c] = np.int8(1) if below[c] != (drawn[c] < limit) else np.int8(-1)
        if pools:
            for c in range(seen.size):
                read[c] = np.float32(seen[c])
            top, left = box[6], box[7]
            _pool_row(read, totals, first - left, last - left, r - top, box[1] - top, pooled, axes)


@njit(parallel=True, cache=True, **FAST)
def measure(
    truth: Array,
    bits: Array,
    flip_below: Array,
    boxes: Array,
    active: Array,
    levels: Array,
    readings: Array,
    pooled_readings: Array,
    beliefs: Array,
    pooled: Array,
    pooled_uncertainty: Array,
    odds: Array,
    rows: Array,
    cols: Array,
    tile_rows: Array,
    tile_cols: Array,
    pools: bool,
    tracks: bool,
) -> None:
    """Take the readings of all UAVs and put each into the UAV's own belief."""
    n = boxes.shape[1]
    for task in prange(boxes.shape[0] * n):
        e, i = task // n, task % n
        if active[e]:
            box, signs, means = boxes[e, i], readings[e, i], pooled_readings[e, i]
            tile = _of_level(tile_rows, levels[e, i]), _of_level(tile_cols, levels[e, i])
            _read(truth[e], bits[e, i], flip_below[e, i], box, signs, means, tile, pools)
            own = beliefs[e, i], pooled[e, i], pooled_uncertainty[e, i]
            _fuse_window(*own, signs, box, odds[e, i], (rows, cols), tracks)


@njit(parallel=True, cache=True, **FAST)
def fuse_heard(
    readings: Array,
    listens: Array,
    boxes: Array,
    beliefs: Array,
    pooled: Array,
    pooled_uncertainty: Array,
    odds: Array,
    rows: Array,
    cols: Array,
    tracks: bool,
) -> None:
    """Update each own belief with the readings of the UAVs it listens to, in order of ids."""
    n = boxes.shape[1]
    for task in prange(boxes.shape[0] * n):
        e, i = task // n, task % n
        own = beliefs[e, i], pooled[e, i], pooled_uncertainty[e, i]
        for j in range(n):
            if listens[e, i, j]:
                _fuse_window(*own, readings[e, j], boxes[e, j], odds[e, j], (rows, cols), tracks)


@njit(**FAST)
def _merge(low: Array, high: Array, count: int) -> int:
    """Sort intervals [low, high) by their start and join those that touch; return how many."""
    for k in range(1, count):
        a, b, m = low[k], high[k], k
        while m > 0 and low[m - 1] > a:
            low[m], high[m] = low[m - 1], high[m - 1]
            m -= 1
        low[m], high[m] = a, b
    kept = 0
    for k in range(1, count):
        if low[k] <= high[kept]:
            high[kept] = max(high[kept], high[k])
        else:
            kept += 1
            low[kept], high[kept] = low[k], high[k]
    return min(count, kept + 1)


@njit(**FAST)
def _spans(boxes: Array, r: int, low: Array, high: Array) -> int:
    """Write which cells of row r lie in some box, as separate intervals; return how many."""
    count = 0
    for j in range(len(boxes)):
        box = boxes[j]
        if box[0] <= r < box[1] and box[2] < box[3]:
            low[count], high[count] = box[2], box[3]
            count += 1
    return _merge(low, high, count)


# Inlined by force: numba would link a copy of its own into the process that compiles, which adds up
# in another order than the copy in the cache, and the first run would differ from all later ones.
@njit(forceinline=True, **FAST)
def _fuse_team(
    readings: Array,
    boxes: Array,
    belief: Array,
    pooled: Array,
    pooled_uncertainty: Array,
    odds: Array,
    axes: Array,
    tracks: bool,
) -> tuple[float, float, float]:
    """Update one global belief with all readings, row by row; return the sums of `fuse_global`."""
    first, last, end = boxes[:, 2].min(), boxes[:, 3].max(), boxes[:, 1].max()
    size = _padded(last - first) + _LANES
    change, uncertainty_change = np.zeros(size, np.float32), np.zeros(size, np.float32)
    totals, uncertainty_totals = np.zeros(size, np.float32), np.zeros(size, np.float32)
    old, new = np.empty(size, np.float32), np.empty(size, np.float32)
    low, high = np.empty(len(boxes), np.int64), np.empty(len(boxes), np.int64)
    gain, reweighted, removed = 0.0, 0.0, 0.0
    for r in range(boxes[:, 0].min(), end):
        for k in range(_spans(boxes, r, low, high)):
            start, width = low[k], high[k] - low[k]
            line = belief[r, start : start + width]
            padded = _padded(width)
            for c in range(width):
                old[c] = line[c]
            for c in range(width, padded):  # nothing changes there, nothing is gained
                old[c] = _HALF
            for c in range(padded):
                new[c] = old[c]
            for j in range(len(boxes)):
                box = boxes[j]
                if box[0] <= r < box[1] and start <= box[2] < box[3] <= high[k]:
                    part = new[box[2] - start : box[3] - start]
                    seen = readings[j, r - box[4], box[2] - box[5] : box[3] - box[5]]
                    for c in range(part.size):
                        part[c] = _bayes(part[c], odds[j, 0] if seen[c] > 0 else odds[j, 1])
            for c in range(width):
                line[c] = new[c]
            row_gain, row_reweighted = np.float32(0.0), np.float32(0.0)
            row_removed = np.float32(0.0)
            changed = change[start - first :]
            for c in range(padded):
                h, w = entropy(old[c]), _weight(new[c])
                less = h - entropy(new[c])
                row_removed += less
                row_gain += w * less
                row_reweighted += (w - _weight(old[c])) * h
                changed[c] += new[c] - old[c]
            gain += float(row_gain)
            reweighted += float(row_reweighted)
            removed += float(row_removed)
            if tracks:
                changed = uncertainty_change[start - first :]
                for c in range(padded):
                    changed[c] += _uncertainty(new[c]) - _uncertainty(old[c])
        _pool_row(change, totals, first, last, r, end, pooled, axes)
        change[:] = 0.0
        if tracks:
            _pool_row(
                uncertainty_change,
                uncertainty_totals,
                first,
                last,
                r,
                end,
                pooled_uncertainty,
                axes,
            )
            uncertainty_change[:] = 0.0
    return gain, reweighted, removed


@njit(parallel=True, cache=True, **FAST)
def fuse_global(
    readings: Array,
    boxes: Array,
    active: Array,
    belief: Array,
    pooled: Array,
    pooled_uncertainty: Array,
    odds: Array,
    rows: Array,
    cols: Array,
    sums: Array,
    tracks: bool,
) -> None:
    """Update the global beliefs with all readings, and sum the information gained.

    `sums` [3, E] gets those of `reward.changes`, each changed cell once.
    """
    for e in prange(boxes.shape[0]):
        sums[:, e] = 0.0
        if active[e]:
            sums[0, e], sums[1, e], sums[2, e] = _fuse_team(
                readings[e],
                boxes[e],
                belief[e],
                pooled[e],
                pooled_uncertainty[e],
                odds[e],
                (rows, cols),
                tracks,
            )


forget_outdated(measure, fuse_heard, fuse_global)
