"""Searches on the lattice in compiled loops; see `search`.

A search reads a handful of numbers very often. Plain operators spend their time on being started;
the loops read every position once. Other threads run meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from torch import Tensor

from marl_framework.kernels.loops import loop, views
from marl_framework.kernels.search import Tables

Array = Any  # numba compiles for the arrays that it is given; `search` names their shapes

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_NEVER = np.float32(-np.inf)

# Sums may be reordered for vector registers; unlike `loops.FAST` no division becomes a product, so
# that rounded gains are those of plain operators.
_FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz"}}


def read(*tensors: Tensor) -> list[Any]:
    """Return arrays to read; they share memory with contiguous tensors."""
    return views(*(tensor.contiguous() for tensor in tensors))


def tables(known: Tables) -> list[Any]:
    """Return arrays of tables."""
    goals, rows, cols, *near = read(*known)
    return [goals, rows, cols, tuple(near)]


@njit(**_FAST)
def _look(left: Array, goal: int, rows: Array, cols: Array, near: Array) -> tuple[Array, Array]:
    """Return what a reading at a goal removes, and what lies around it."""
    removed = around = _ZERO
    for x in range(left.shape[0]):
        inside = beside = _ZERO
        for y in range(left.shape[1]):
            inside += left[x, y] * cols[goal, y]
            beside += left[x, y] * near[1][goal, y]
        removed += rows[goal, x] * inside
        around += near[0][goal, x] * beside
    return removed, around


@njit(**_FAST)
def _after(left: Array, place: int, rows: Array, cols: Array) -> None:
    """Take away what a reading removes."""
    for x in range(left.shape[0]):
        if rows[place, x] > _ZERO:
            for y in range(left.shape[1]):
                left[x, y] *= _ONE - rows[place, x] * cols[place, y]


@njit(**_FAST)
def _rounded(value: Array, digits: Array) -> Array:
    return np.float32(np.round(value * digits) / digits)


@loop(nogil=True, **_FAST)
def outlook(
    places: Array,
    left: Array,
    goals: Array,
    rows: Array,
    cols: Array,
    near: tuple[Array, Array],
    gains: Array,
    around: Array,
) -> None:
    """See `search.outlook`."""
    for b in range(places.size):
        for a in range(goals.shape[1]):
            gains[b, a], around[b, a] = _look(left[b], goals[places[b], a], rows, cols, near)


@loop(nogil=True, **_FAST)
def fly(
    places: Array,
    first_allowed: Array,
    allowed_moves: Array,
    horizon: Array,
    goals: Array,
    rows: Array,
    cols: Array,
    near: tuple[Array, Array],
    pull: Array,
    digits: Array,
    gains: Array,
    scores: Array,
    first: Array,
    total: Array,
    left: Array,
) -> None:
    """See `search.fly`."""
    flights = places.size // len(allowed_moves)  # of a mission
    for b in range(places.size):
        place, removed = places[b], _ZERO
        for move in range(max(horizon[b], 1)):
            allowed = first_allowed[b] if move == 0 else allowed_moves[b // flights, place]
            best, action, gain = _NEVER, 0, _ZERO
            for a in range(goals.shape[1]):
                if not (allowed[a] or a == 0 or move == 0):
                    continue
                found, around = _look(left[b], goals[place, a], rows, cols, near)
                found = _rounded(found, digits)
                score = _rounded(found + pull * around, digits) if allowed[a] else _NEVER
                if a == 0 or score > best:
                    best, action, gain = score, a, found
                if move == 0:
                    gains[b, a], scores[b, a] = found, score
            if move == 0:
                first[b] = action
            if move < horizon[b]:
                removed += gain
                place = goals[place, action]
                _after(left[b], place, rows, cols)
        total[b] = removed


@loop(nogil=True, **_FAST)
def find_repeats(values: Array, ends: Array, tolerance: float, repeated: Array) -> None:
    """See `search.find_repeats`."""
    for e in range(values.shape[0]):
        for i in range(values.shape[1]):
            repeated[e, i] = False
            for j in range(i - 1, -1, -1):  # the values rise on the way
                if not values[e, j] - values[e, i] <= tolerance * abs(values[e, i]):
                    break
                if ends[e, j] == ends[e, i]:
                    repeated[e, i] = True
                    break
