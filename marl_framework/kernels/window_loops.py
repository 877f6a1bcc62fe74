"""The loops over footprint windows, compiled for the CPU by numba.

A step touches the cells under the footprints and nothing else. Plain PyTorch moves these
windows through memory once an operation; here every cell is read, updated, pooled and written
once. Arrays are views of the tensors' memory. Missions (or UAVs) run in parallel and write
disjoint memory, so results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from marl_framework.kernels.division import Division

Array = Any  # numba compiles for the arrays it is given; see cpu.py for their shapes

_ONE = np.float32(1.0)
_HALF = np.float32(0.5)
_LOW = np.float32(1e-4)
_HIGH = np.float32(1.0 - 1e-4)
_INTEREST = np.float32(0.501)
_NO_INTEREST = np.float32(0.499)
_SQRT_HALF_BITS = np.float32(0.5**0.5).view(np.int32)


def _log2_polynomial(degree: int) -> list[np.float32]:
    """Fit log2(1 + t)/t on [1/√2 - 1, √2 - 1] at Chebyshev points, lowest power first."""
    low, high = 0.5**0.5 - 1, 2**0.5 - 1
    nodes = np.cos((np.arange(1000) + 0.5) * np.pi / 1000)
    t = (low + high) / 2 + (high - low) / 2 * nodes
    return [np.float32(c) for c in np.polynomial.polynomial.polyfit(t, np.log2(1 + t) / t, degree)]


_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = _log2_polynomial(8)

# Without these the loops do not run in vector registers: sums may be reordered (NaN and infinity
# keep their meaning), and a division by zero gives infinity instead of an exception.
_FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "arcp", "nsz"}, "error_model": "numpy"}


@njit(**_FAST)
def _bayes(p: Array, odds: Array) -> Array:
    clamped = min(max(p, _LOW), _HIGH)
    weighed = clamped * odds
    return weighed / (weighed + (_ONE - clamped))


@njit(**_FAST)
def _log2(x: Array) -> Array:
    """log2 of a positive normal number, to 1e-7: exponent plus a polynomial of the mantissa.

    The mantissa is taken from [1/√2, √2), so that numbers near 1 keep their precision.
    """
    bits = np.float32(x).view(np.int32)
    exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> np.int32(23))
    t = np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32) - _ONE
    series = _P8
    series = series * t + _P7
    series = series * t + _P6
    series = series * t + _P5
    series = series * t + _P4
    series = series * t + _P3
    series = series * t + _P2
    series = series * t + _P1
    series = series * t + _P0
    return np.float32(exponent) + t * series


@njit(**_FAST)
def _entropy(p: Array) -> Array:
    p = min(max(p, _LOW), _HIGH)
    rest = _ONE - p
    return -(p * _log2(p) + rest * _log2(rest))


@njit(**_FAST)
def _uncertainty(p: Array) -> Array:
    p = min(max(p, _LOW), _HIGH)
    return p * _entropy(p)


@njit(**_FAST)
def _weight(p: Array) -> Array:
    return (_HALF if p > _INTEREST else np.float32(0.0)) + (
        _HALF if p >= _NO_INTEREST else np.float32(0.0)
    )


@njit(**_FAST)
def _pool_row(
    change: Array, first: int, last: int, r: int, pooled: Array, rows: Array, cols: Array
) -> None:
    """Add the changes of cells [first, last) of map row r to the pooled map.

    `rows` and `cols` say how the lattice divides the axes, see `division.Division`.
    """
    for y in range(cols.bins[first, 0], cols.inner_low.size):
        inner_low, inner_high = cols.inner_low[y], cols.inner_high[y]
        if inner_low - 1 >= last:
            break
        total = np.float32(0.0)
        for c in range(max(inner_low, first), min(inner_high, last)):
            total += change[c - first]
        total *= cols.inner
        if first < inner_low:
            total += cols.left[y] * change[inner_low - 1 - first]
        if inner_high >= first and inner_high < last:
            total += cols.right[y] * change[inner_high - first]
        pooled[rows.bins[r, 0], y] += rows.weights[r, 0] * total
        if rows.weights[r, 1] > 0:
            pooled[rows.bins[r, 1], y] += rows.weights[r, 1] * total


@njit(**_FAST)
def _fuse_window(
    belief: Array,
    pooled: Array,
    unsure: Array,
    signs: Array,
    box: Array,
    up: Array,
    down: Array,
    rows: Array,
    cols: Array,
    change: Array,
    tracks: bool,
) -> None:
    """Update one map with one reading; for `box` see `cpu.WindowLoops.measure`."""
    first, last = box[2], box[3]
    for r in range(box[0], box[1]):
        line = belief[r, first:last]
        seen = signs[r - box[4], first - box[5] : last - box[5]]
        for c in range(last - first):
            p = line[c]
            updated = _bayes(p, up if seen[c] > 0 else down)
            change[c] = updated - p
            line[c] = updated
        if first < last:
            _pool_row(change, first, last, r, pooled, rows, cols)
            if tracks:
                for c in range(last - first):
                    change[c] = _uncertainty(line[c]) - _uncertainty(line[c] - change[c])
                _pool_row(change, first, last, r, unsure, rows, cols)


@njit(**_FAST)
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


@njit(**_FAST)
def _read(
    truth: Array,
    bits: Array,
    flip_below: Array,
    box: Array,
    signs: Array,
    pooled: Array,
    rows: Array,
    cols: Array,
    line: Array,
    pools: bool,
) -> None:
    """Take one reading, and average it over the parts of the unclipped footprint square."""
    signs[:, :] = 0
    pooled[:, :] = 0.0
    first, last = box[2], box[3]
    for r in range(box[0], box[1]):
        below = truth[r, first:last]
        drawn = bits[r - box[4], first - box[5] : last - box[5]]
        seen = signs[r - box[4], first - box[5] : last - box[5]]
        for c in range(last - first):
            wrong = drawn[c] < flip_below
            seen[c] = np.int8(1) if below[c] != wrong else np.int8(-1)
        if pools and first < last:
            for c in range(last - first):
                line[c] = np.float32(seen[c])
            _pool_row(line, first - box[7], last - box[7], r - box[6], pooled, rows, cols)


@njit(parallel=True, cache=True, **_FAST)
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
    unsure: Array,
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
            line = np.empty(readings.shape[3], np.float32)
            _read(
                truth[e],
                bits[e, i],
                flip_below[e, i],
                boxes[e, i],
                readings[e, i],
                pooled_readings[e, i],
                _of_level(tile_rows, levels[e, i]),
                _of_level(tile_cols, levels[e, i]),
                line,
                pools,
            )
            _fuse_window(
                beliefs[e, i],
                pooled[e, i],
                unsure[e, i],
                readings[e, i],
                boxes[e, i],
                odds[e, i, 0],
                odds[e, i, 1],
                rows,
                cols,
                line,
                tracks,
            )


@njit(parallel=True, cache=True, **_FAST)
def fuse_heard(
    readings: Array,
    listens: Array,
    boxes: Array,
    beliefs: Array,
    pooled: Array,
    unsure: Array,
    odds: Array,
    rows: Array,
    cols: Array,
    tracks: bool,
) -> None:
    """Update each own belief with the readings of the UAVs it listens to, in order of ids."""
    n = boxes.shape[1]
    for task in prange(boxes.shape[0] * n):
        e, i = task // n, task % n
        change = np.empty(readings.shape[3], np.float32)
        for j in range(n):
            if listens[e, i, j]:
                _fuse_window(
                    beliefs[e, i],
                    pooled[e, i],
                    unsure[e, i],
                    readings[e, j],
                    boxes[e, j],
                    odds[e, j, 0],
                    odds[e, j, 1],
                    rows,
                    cols,
                    change,
                    tracks,
                )


@njit(**_FAST)
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


@njit(parallel=True, cache=True, **_FAST)
def fuse_global(
    readings: Array,
    boxes: Array,
    active: Array,
    belief: Array,
    pooled: Array,
    unsure: Array,
    odds: Array,
    rows: Array,
    cols: Array,
    gain: Array,
    reweighted: Array,
    tracks: bool,
) -> None:
    """Update the global beliefs with all readings, and add up what they tell.

    `gain` gets the sum of w(after)·(H(before) - H(after)), `reweighted` that of
    (w(after) - w(before))·H(before), each changed cell once.
    """
    n = boxes.shape[1]
    for e in prange(boxes.shape[0]):
        gain[e] = 0.0
        reweighted[e] = 0.0
        if active[e]:
            before = np.empty(belief.shape[2], np.float32)
            low, high = np.empty(n, np.int64), np.empty(n, np.int64)
            for r in range(boxes[e, :, 0].min(), boxes[e, :, 1].max()):
                count = 0
                for j in range(n):
                    box = boxes[e, j]
                    if box[0] <= r < box[1] and box[2] < box[3]:
                        low[count], high[count] = box[2], box[3]
                        count += 1
                spans = _merge(low, high, count)
                for k in range(spans):
                    for c in range(low[k], high[k]):
                        before[c] = belief[e, r, c]
                for j in range(n):
                    box = boxes[e, j]
                    if box[0] <= r < box[1]:
                        line = belief[e, r, box[2] : box[3]]
                        seen = readings[e, j, r - box[4], box[2] - box[5] : box[3] - box[5]]
                        for c in range(line.size):
                            odd = odds[e, j, 0] if seen[c] > 0 else odds[e, j, 1]
                            line[c] = _bayes(line[c], odd)
                for k in range(spans):
                    old = before[low[k] : high[k]]
                    new = belief[e, r, low[k] : high[k]]
                    told = np.float32(0.0)
                    moved = np.float32(0.0)
                    for c in range(old.size):
                        h, w = _entropy(old[c]), _weight(new[c])
                        told += w * (h - _entropy(new[c]))
                        moved += (w - _weight(old[c])) * h
                        old[c] = new[c] - old[c]
                    gain[e] += told
                    reweighted[e] += moved
                    _pool_row(old, low[k], high[k], r, pooled[e], rows, cols)
                    if tracks:
                        for c in range(old.size):
                            old[c] = _uncertainty(new[c]) - _uncertainty(new[c] - old[c])
                        _pool_row(old, low[k], high[k], r, unsure[e], rows, cols)
