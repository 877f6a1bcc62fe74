"""Compiled loop for expected gains; see `gains`."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from torch import Tensor

from marl_framework.kernels import cells_numba as cells
from marl_framework.kernels.loops import FAST, loop, views

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)


def footprint_gains(agent: int, *tensors: Tensor) -> None:
    """See `gains.footprint_gains`; the last tensor is written."""
    gains_loop(agent, *views(*tensors))


@loop(parallel=True)
def gains_loop(agent, beliefs, allowed, boxes, rates, odds, others, kept, gains):
    """See `gains.footprint_gains`."""
    actions = boxes.shape[1]
    for task in prange(boxes.shape[0] * actions):
        e, a = task // actions, task % actions
        gains[e, a] = _ZERO
        if allowed[e, a]:
            sensor = rates[e, a, 0], rates[e, a, 1], odds[e, a, 0], odds[e, a, 1]
            gains[e, a] = _sum_gains(beliefs[e, agent], boxes[e, a], *sensor, others[e], kept[e])


@njit(**FAST)
def _sum_gains(belief, box, miss, false_alarm, odds_up, odds_down, others, kept):
    """Return the gain of one footprint."""
    first, last = box[2], box[3]
    width = last - first
    line = np.full(cells.padded(width), _HALF)
    gain = np.empty(line.size, np.float32)
    total = 0.0
    for r in range(box[0], box[1]):
        for c in range(width):
            line[c] = belief[r, first + c]
        for c in range(line.size):
            gain[c] = _expected_gain(line[c], miss, false_alarm, odds_up, odds_down)
        gain[width:] = _ZERO
        for j in range(len(others)):
            other = others[j]
            if other[0] <= r < other[1]:
                for c in range(max(first, other[2]), min(last, other[3])):
                    gain[c - first] *= kept[j]
        row = _ZERO
        for c in range(gain.size):
            row += gain[c]
        total += float(row)
    return np.float32(total)


@njit(inline="always", **FAST)
def _expected_gain(p, miss, false_alarm, odds_up, odds_down):
    """See `planners.information_gain.expected_gain`."""
    before = cells.entropy(p)
    positive = false_alarm + p * (_ONE - (miss + false_alarm))
    up, down = cells.bayes(p, odds_up), cells.bayes(p, odds_down)
    gain_up = cells.weight(up) * (before - cells.entropy(up))
    gain_down = cells.weight(down) * (before - cells.entropy(down))
    return positive * gain_up + (_ONE - positive) * gain_down
