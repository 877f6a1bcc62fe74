"""Sums over parts of the map in compiled loops; see `parts`."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from marl_framework.kernels.cells_numba import entropy
from marl_framework.kernels.loops import FAST, loop, views

_ZERO = np.float32(0.0)


def part_sums(maps: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """See `parts.part_sums`; of maps [M, R, C]."""
    sums = torch.empty(len(maps), 3, len(row_ends), len(col_ends))
    # A thread of several that share the work has one core.
    alone = torch.get_num_threads() == 1
    (sum_parts if alone else sum_parts_in_parallel)(*views(maps, row_ends, col_ends, sums))
    return sums


@loop(nogil=True)
def sum_parts(maps, row_ends, col_ends, sums):
    """Write the sums of all maps, on the calling thread; others run meanwhile."""
    for b in range(len(maps)):
        _sum_map(maps[b], row_ends, col_ends, sums[b])


@loop(parallel=True)
def sum_parts_in_parallel(maps, row_ends, col_ends, sums):
    """Write the sums of all maps, on all threads."""
    for b in prange(len(maps)):
        _sum_map(maps[b], row_ends, col_ends, sums[b])


@njit(**FAST)
def _sum_map(belief, row_ends, col_ends, sums):
    """Write the sums of one map: first over the rows of a part, in vectors, then along it."""
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
