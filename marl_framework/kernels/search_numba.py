"""Compiled loops for lattice searches; see `search`.

A search reads few numbers very often, so the overhead of plain operators would dominate. Loops
release the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from torch import Tensor

from marl_framework.kernels.loops import loop, views

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)

# Sums may be reordered for vectorisation. Unlike `loops.FAST`, divisions do not become products, so
# that rounded gains equal the gains of plain operators.
_FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz"}}


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Return the tensors as arrays; contiguous tensors share memory with their array."""
    return tuple(views(*(tensor.contiguous() for tensor in tensors)))


@njit(**_FAST)
def _score_goal(left, goal, tables):
    """Return the entropy that a reading at a goal removes, and the entropy around it."""
    _, rows, cols, near_rows, near_cols = tables
    removed = around = _ZERO
    for x in range(left.shape[0]):
        inside = nearby = _ZERO
        for y in range(left.shape[1]):
            inside += left[x, y] * cols[goal, y]
            nearby += left[x, y] * near_cols[goal, y]
        removed += rows[goal, x] * inside
        around += near_rows[goal, x] * nearby
    return removed, around


@loop(nogil=True, **_FAST)
def outlook(places, left, tables, gains, around):
    """See `search.outlook`."""
    goals = tables[0]
    for b in range(places.size):
        for a in range(goals.shape[1]):
            gains[b, a], around[b, a] = _score_goal(left[b], goals[places[b], a], tables)


@loop(nogil=True, fastmath=False)
def advance(places, parents, rows, cols, before, after):
    """See `search.advance`; rounds as plain operators do."""
    per_mission = parents.shape[1]
    for e in range(parents.shape[0]):
        for b in range(per_mission):
            left, place = before[e, parents[e, b]], places[e, b]
            for x in range(left.shape[0]):
                row = rows[place, x]
                if row > _ZERO:
                    for y in range(left.shape[1]):
                        after[e, b, x, y] = left[x, y] * (_ONE - row * cols[place, y])
                else:
                    for y in range(left.shape[1]):
                        after[e, b, x, y] = left[x, y]


@loop(nogil=True)
def path_lengths(origins, moves, goals, most, lengths):
    """See `search.path_lengths`: breadth-first search, as every move is reversible."""
    queue = np.empty(goals.shape[0], np.int64)
    for e in range(origins.shape[0]):
        for n in range(origins.shape[1]):
            length = lengths[e, n]
            length[:] = most + 1
            length[origins[e, n]] = 0
            queue[0], first, end = origins[e, n], 0, 1
            while first < end:
                place = queue[first]
                first += 1
                if length[place] == most:
                    break
                for a in range(goals.shape[1]):
                    goal = goals[place, a]
                    if moves[e, place, a] and length[goal] > most:
                        length[goal] = length[place] + 1
                        queue[end] = goal
                        end += 1


@loop(nogil=True, **_FAST)
def find_repeats(values, ends, tolerance, repeated):
    """See `search.find_repeats`."""
    for e in range(values.shape[0]):
        for i in range(values.shape[1]):
            repeated[e, i] = False
            for j in range(i - 1, -1, -1):  # values increase towards j = 0
                if not values[e, j] - values[e, i] <= tolerance * abs(values[e, i]):
                    break
                if ends[e, j] == ends[e, i]:
                    repeated[e, i] = True
                    break
