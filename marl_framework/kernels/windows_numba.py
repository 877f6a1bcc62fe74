"""Compiled loops for footprint windows; see `windows`.

The loops read, update, pool and write each cell once. Missions (or UAVs) run in parallel and write
to separate memory, so that results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from marl_framework.kernels import cells_numba as cells
from marl_framework.kernels.loops import FAST, loop, views

_HALF = np.float32(0.5)


def read_windows(*arguments: Any) -> None:
    """See `windows.read`."""
    truth, *before, shift, inside, active, readings, pooled = arguments
    if shift is None:
        shift = torch.zeros(*readings.shape[:2], 2, dtype=torch.int64)
    field = truth if inside is None else inside  # without a field, not read
    tensors = truth, *before, shift, field, active, readings, pooled
    read_loop(*views(*tensors), inside is not None)


def fuse_own(*arguments: Any) -> None:
    """See `windows.fuse_own`."""
    *tensors, takes_own, takes_heard, tracks, prior = arguments
    *inputs, beliefs, pooled, uncertainty = views(*tensors)
    maps = beliefs, pooled, uncertainty
    own_loop(*inputs, maps, takes_own, takes_heard, tracks, np.float32(prior or 0))


def fuse_global(*arguments: Any) -> Tensor:
    """See `windows.fuse_global`."""
    *tensors, tracks, prior = arguments
    sums = torch.empty(3, len(tensors[0]), dtype=torch.float64)
    *inputs, beliefs, pooled, uncertainty = views(*tensors)
    maps = beliefs, pooled, uncertainty
    global_loop(*inputs, maps, sums.numpy(), tracks, np.float32(prior or 0))
    return sums


@loop(parallel=True)
def read_loop(
    truth, bits, flip_below, boxes, sides, shift, inside, active, readings, pooled, has_field
):
    """See `windows.read`."""
    n = boxes.shape[1]
    for task in prange(boxes.shape[0] * n):
        e, i = task // n, task % n
        if active[e]:
            seen = bits[e, i], flip_below[e, i], boxes[e, i], sides[e, i], shift[e, i]
            _read(truth[e], *seen, inside[e], has_field, readings[e, i], pooled[e, i])


@njit(**FAST)
def _read(truth, bits, flip_below, box, sides, shift, inside, has_field, signs, pooled):
    """Take one reading and average it over the parts of the unclipped footprint square."""
    signs[:, :] = 0
    pooled[:, :] = 0.0
    first, last, top, left = box[2], box[3], box[6], box[7]
    if first >= last:
        return
    size = cells.padded(last - first)
    read, totals = np.zeros(size, np.float32), np.zeros(size, np.float32)
    false_alarm, miss = flip_below[0], flip_below[1]
    moved = np.empty(size, truth.dtype)
    fine = sides[0] >= pooled.shape[0] and sides[1] >= pooled.shape[1]
    for r in range(box[0], box[1]):
        line = truth[min(max(r + shift[0], 0), truth.shape[0] - 1)]
        drawn = bits[r - box[4], first - box[5] : last - box[5]]
        seen = signs[r - box[4], first - box[5] : last - box[5]]
        if shift[1] == 0:
            _sign_row(line[first:last], drawn, miss, false_alarm, seen)
        else:
            for c in range(seen.size):
                moved[c] = line[min(max(first + c + shift[1], 0), line.size - 1)]
            _sign_row(moved, drawn, miss, false_alarm, seen)
        if has_field:
            for c in range(seen.size):
                seen[c] = seen[c] if inside[r, first + c] else np.int8(-1)
        if fine:
            for c in range(seen.size):
                read[c] = np.float32(seen[c])
            span, rows = (first - left, last - left), (r - top, box[1] - top)
            cells.pool_row(read, totals, span, rows, pooled, sides)
        else:
            _pool_coarse(seen, r - top, first - left, sides, pooled)


@njit(**FAST)
def _sign_row(interest, drawn, miss, false_alarm, seen):
    """Write the signs of one row of a reading."""
    for c in range(seen.size):
        limit = miss if interest[c] else false_alarm
        seen[c] = np.int8(1) if interest[c] != (drawn[c] < limit) else np.int8(-1)


@njit(**FAST)
def _pool_coarse(seen, r, first, sides, pooled):
    """Add row r to the means of a footprint that has fewer cells than lattice positions."""
    for x in range(pooled.shape[0]):
        row = cells.cell_weight(r, x, sides[0], pooled.shape[0])
        for c in range(seen.size):
            for y in range(pooled.shape[1]):
                col = cells.cell_weight(first + c, y, sides[1], pooled.shape[1])
                pooled[x, y] += row * col * np.float32(seen[c])


@loop(parallel=True)
def own_loop(readings, heard, boxes, odds, active, maps, takes_own, takes_heard, tracks, prior):
    """See `windows.fuse_own`."""
    n = boxes.shape[1]
    for task in prange(boxes.shape[0] * n):
        e, i = task // n, task % n
        if active[e]:
            own = maps[0][e, i], maps[1][e, i], maps[2][e, i]
            if prior > 0:
                own[0][:, :] = prior
            if takes_own:
                _fuse_window(*own, readings[e, i], boxes[e, i], odds[e, i], tracks)
            if takes_heard:
                for j in range(n):
                    if j != i and heard[e, i, j]:
                        _fuse_window(*own, readings[e, j], boxes[e, j], odds[e, j], tracks)


@njit(fastmath={"contract"})  # no reordering, so that rounding is reproducible
def _change(before, after):
    """Return the change in a cell's uncertainty."""
    return cells.uncertainty(after) - cells.uncertainty(before)


@njit(**FAST)
def _fuse_window(belief, pooled, pooled_uncertainty, signs, box, odds, tracks):
    """Fuse one reading into one belief map and its pooled maps."""
    first, last, end = box[2], box[3], box[1]
    if first >= last:
        return
    width = last - first
    size = cells.padded(width)
    change, totals = np.zeros(size, np.float32), np.zeros(size, np.float32)
    uncertainty_totals = np.zeros(size, np.float32)
    for r in range(box[0], end):
        line = belief[r, first:last]
        seen = signs[r - box[4], first - box[5] : last - box[5]]
        for c in range(width):
            before = line[c]
            line[c] = cells.bayes(before, odds[0] if seen[c] > 0 else odds[1])
            change[c] = line[c] - before
        cells.pool_row(change, totals, (first, last), (r, end), pooled, belief.shape)
        if tracks:
            for c in range(width):
                change[c] = _change(line[c] - change[c], line[c])
            buffers = change, uncertainty_totals
            cells.pool_row(*buffers, (first, last), (r, end), pooled_uncertainty, belief.shape)


@loop(parallel=True)
def global_loop(readings, boxes, odds, active, maps, sums, tracks, prior):
    """See `windows.fuse_global`."""
    for e in prange(boxes.shape[0]):
        sums[:, e] = 0.0
        if active[e]:
            one = maps[0][e], maps[1][e], maps[2][e]
            if prior > 0:
                one[0][:, :] = prior
            gained = _fuse_mission(readings[e], boxes[e], odds[e], *one, tracks)
            sums[0, e], sums[1, e], sums[2, e] = gained


# forceinline, or else the process that compiles would link a separate copy of this function. That
# copy sums in another order than the cached copy, and the first run would differ from later runs.
@njit(forceinline=True, **FAST)
def _fuse_mission(readings, boxes, odds, belief, pooled, pooled_uncertainty, tracks):
    """Fuse all readings into one global belief, row by row; return the sums of `fuse_global`."""
    first, last, end = boxes[:, 2].min(), boxes[:, 3].max(), boxes[:, 1].max()
    size = cells.padded(last - first) + cells.padded(1)
    change, uncertainty_change = np.zeros(size, np.float32), np.zeros(size, np.float32)
    totals, uncertainty_totals = np.zeros(size, np.float32), np.zeros(size, np.float32)
    old, new = np.empty(size, np.float32), np.empty(size, np.float32)
    low, high = np.empty(len(boxes), np.int64), np.empty(len(boxes), np.int64)
    gain, reweighted, removed = 0.0, 0.0, 0.0
    for r in range(boxes[:, 0].min(), end):
        for k in range(_spans(boxes, r, low, high)):
            start, width = low[k], high[k] - low[k]
            line = belief[r, start : start + width]
            wide = cells.padded(width)
            for c in range(width):
                old[c] = line[c]
            for c in range(width, wide):  # padding does not change, so adds nothing
                old[c] = _HALF
            for c in range(wide):
                new[c] = old[c]
            for j in range(len(boxes)):
                box = boxes[j]
                if box[0] <= r < box[1] and start <= box[2] < box[3] <= high[k]:
                    part = new[box[2] - start : box[3] - start]
                    seen = readings[j, r - box[4], box[2] - box[5] : box[3] - box[5]]
                    for c in range(part.size):
                        part[c] = cells.bayes(part[c], odds[j, 0] if seen[c] > 0 else odds[j, 1])
            for c in range(width):
                line[c] = new[c]
            row_gain, row_reweighted = np.float32(0.0), np.float32(0.0)
            row_removed = np.float32(0.0)
            changed = change[start - first :]
            for c in range(wide):
                h, w = cells.entropy(old[c]), cells.weight(new[c])
                less = h - cells.entropy(new[c])
                row_removed += less
                row_gain += w * less
                row_reweighted += (w - cells.weight(old[c])) * h
                changed[c] += new[c] - old[c]
            gain += float(row_gain)
            reweighted += float(row_reweighted)
            removed += float(row_removed)
            if tracks:
                changed = uncertainty_change[start - first :]
                for c in range(wide):
                    changed[c] += cells.uncertainty(new[c]) - cells.uncertainty(old[c])
        cells.pool_row(change, totals, (first, last), (r, end), pooled, belief.shape)
        change[:] = 0.0
        if tracks:
            buffers = uncertainty_change, uncertainty_totals
            cells.pool_row(*buffers, (first, last), (r, end), pooled_uncertainty, belief.shape)
            uncertainty_change[:] = 0.0
    return gain, reweighted, removed


@njit(**FAST)
def _spans(boxes, r, low, high):
    """Write the disjoint intervals of row r that boxes cover to `low`, `high`; return how many."""
    count = 0
    for j in range(len(boxes)):
        box = boxes[j]
        if box[0] <= r < box[1] and box[2] < box[3]:
            low[count], high[count] = box[2], box[3]
            count += 1
    for k in range(1, count):  # sort by start
        a, b, m = low[k], high[k], k
        while m > 0 and low[m - 1] > a:
            low[m], high[m] = low[m - 1], high[m - 1]
            m -= 1
        low[m], high[m] = a, b
    kept = 0
    for k in range(1, count):  # merge intervals that touch or overlap
        if low[k] <= high[kept]:
            high[kept] = max(high[kept], high[k])
        else:
            kept += 1
            low[kept], high[kept] = low[k], high[k]
    return min(count, kept + 1)
