"""Sums of beliefs and their entropy over parts of the map, compiled for the CPU by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from marl_framework.mission.kernels.scalars import FAST, entropy, forget_outdated

Array = Any  # numba compiles for the arrays it is given; see cpu.py for their shapes

_ZERO = np.float32(0.0)


@njit(**FAST)
def _sum_map(belief: Array, row_ends: Array, col_ends: Array, sums: Array) -> None:
    """Write the sums of one map: first over the rows of a part, which vectors do, then along it."""
    totals = np.empty((3, belief.shape[1]), np.float32)
    first_row = 0
    for i in range(row_ends.size):
        totals[:] = _ZERO
        for r in range(first_row, row_ends[i]):
            for c in range(belief.shape[1]):
                p = belief[r, c]
                h = entropy(p)
                totals[0, c] += p
                totals[1, c] += h
                totals[2, c] += p * h
        first_row, first = row_ends[i], 0
        for j in range(col_ends.size):
            for k in range(3):
                total = _ZERO
                for c in range(first, col_ends[j]):
                    total += totals[k, c]
                sums[k, i, j] = total
            first = col_ends[j]


@njit(nogil=True, cache=True, **FAST)
def sum_parts(beliefs: Array, row_ends: Array, col_ends: Array, sums: Array) -> None:
    """Write the sums of all maps, on the calling thread; others run meanwhile."""
    for b in range(len(beliefs)):
        _sum_map(beliefs[b], row_ends, col_ends, sums[b])


@njit(parallel=True, cache=True, **FAST)
def sum_parts_in_parallel(beliefs: Array, row_ends: Array, col_ends: Array, sums: Array) -> None:
    """Write the sums of all maps, on all threads."""
    for b in prange(len(beliefs)):
        _sum_map(beliefs[b], row_ends, col_ends, sums[b])


forget_outdated(sum_parts, sum_parts_in_parallel)
