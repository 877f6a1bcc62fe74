"""Compiled loops on tensors in the CPU's memory: over windows, sums over areas, random words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_framework.mission.kernels.division import divide, divide_each

try:
    from numba import get_num_threads, set_num_threads

    from marl_framework.mission.kernels import part_loops, philox, window_loops
except (
    ImportError,
    RuntimeError,
):  # no numba, or no place for its cache: PyTorch and numpy instead
    _AVAILABLE = False
else:
    _AVAILABLE = True
    _THREADS = torch.get_num_threads()
    _MOST_THREADS = get_num_threads()  # starts numba's pool, which sets OpenMP's number for all
    torch.set_num_threads(_THREADS)


class WindowLoops:
    """The loops for maps of one shape.

    All tensors are contiguous and lie on the CPU; maps are updated in place.

    Args:
        map_shape: (R, C).
        shape: lattice (X, Y), no finer than the map.
        sides: of the footprints along x and y, by altitude [cells].
        tracks_uncertainty: whether pooled uncertainties are updated.

    Attributes:
        pools_readings: whether `measure` writes `pooled_readings`; not where a footprint has
            fewer cells than the lattice.
    """

    def __init__(
        self,
        map_shape: tuple[int, int],
        shape: tuple[int, int],
        sides: Sequence[Sequence[int]],
        tracks_uncertainty: bool = False,
    ) -> None:
        self._tracks = tracks_uncertainty
        self._axes = [divide(n, m) for n, m in zip(map_shape, shape, strict=True)]
        self.pools_readings = all(min(s) >= m for s, m in zip(sides, shape, strict=True))
        self._tiles = [divide_each(axis, m) for axis, m in zip(sides, shape, strict=True)]

    @staticmethod
    def available() -> bool:
        """Return whether numba can compile the loops."""
        return _AVAILABLE

    def measure(
        self,
        truth: Tensor,
        bits: Tensor,
        flip_below: Tensor,
        boxes: Tensor,
        active: Tensor,
        odds: Tensor,
        levels: Tensor,
        readings: Tensor,
        pooled_readings: Tensor,
        beliefs: Tensor,
        pooled: Tensor,
        pooled_uncertainty: Tensor,
    ) -> None:
        """Take a reading at each UAV and put it into its own belief.

        Args:
            truth: [E, R, C] bool.
            bits: [E, N, K_x, K_y] int16.
            flip_below: below these, bits misread cells that are not of interest, and cells
                that are, [E, N, 2] int16.
            boxes: [E, N, 8] int64: row0, row1, col0, col1, window_row, window_col, top, left.
            active: missions to update, [E] bool.
            odds: what a positive and a negative reading multiply odds with, [E, N, 2].
            levels: altitude indices, [E, N] int64.
            readings: [E, N, K_x, K_y] int8, written.
            pooled_readings: their area means [E, N, X, Y], written; see `pools_readings`.
            beliefs: [E, N, R, C], updated.
            pooled: area means of the beliefs [E, N, X, Y], updated.
            pooled_uncertainty: area means of their uncertainty [E, N, X, Y], updated.
        """
        arrays = views(truth, bits, flip_below, boxes, active, levels, readings)
        maps = views(pooled_readings, beliefs, pooled, pooled_uncertainty, odds)
        window_loops.measure(
            *arrays, *maps, *self._axes, *self._tiles, self.pools_readings, self._tracks
        )

    def fuse_heard(
        self,
        readings: Tensor,
        listens: Tensor,
        boxes: Tensor,
        odds: Tensor,
        beliefs: Tensor,
        pooled: Tensor,
        pooled_uncertainty: Tensor,
    ) -> None:
        """Update own beliefs with the readings listened to ([E, N, N] bool), in order of ids."""
        arrays = views(readings, listens, boxes, beliefs, pooled, pooled_uncertainty, odds)
        window_loops.fuse_heard(*arrays, *self._axes, self._tracks)

    def fuse_global(
        self,
        readings: Tensor,
        boxes: Tensor,
        active: Tensor,
        odds: Tensor,
        belief: Tensor,
        pooled: Tensor,
        pooled_uncertainty: Tensor,
    ) -> Tensor:
        """Update global beliefs [E, R, C] with all readings.

        Returns:
            The sums of `reward.changes`, [3, E] float64.
        """
        sums = torch.empty(3, len(belief), dtype=torch.float64)
        arrays = views(readings, boxes, active, belief, pooled, pooled_uncertainty, odds)
        window_loops.fuse_global(*arrays, *self._axes, *views(sums), self._tracks)
        return sums


def part_sums(beliefs: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """Return sums of p, H(p) and p·H(p) over parts of maps, [..., 3, P, Q] of [..., R, C].

    Args:
        beliefs: probabilities p.
        row_ends: the row after the last one of each part, [P] int64.
        col_ends: the same for columns, [Q].
    """
    maps = beliefs.flatten(0, -3).contiguous()
    sums = torch.empty(len(maps), 3, len(row_ends), len(col_ends))
    # A thread of several that share out the work has one core.
    alone = torch.get_num_threads() == 1
    loop = part_loops.sum_parts if alone else part_loops.sum_parts_in_parallel
    loop(*views(maps, row_ends, col_ends, sums))
    return sums.unflatten(0, beliefs.shape[:-2])


def _use_all_threads() -> None:
    set_num_threads(min(torch.get_num_threads(), _MOST_THREADS))


def views(*tensors: Tensor) -> list[Any]:
    """Return arrays on the tensors' memory, for loops on as many threads as PyTorch has."""
    _use_all_threads()
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("compiled loops need contiguous tensors")
    return [tensor.numpy() for tensor in tensors]


def random_words(words: Tensor, generator: torch.Generator) -> None:
    """Fill a tensor [W] int64 with random bits: Philox under a key drawn from the generator."""
    drawn = torch.empty(2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    key, filled = drawn.numpy().view(np.uint64), words.numpy().view(np.uint64)
    if _AVAILABLE:
        _use_all_threads()
        philox.fill(filled, key)
    else:
        filled[:] = np.random.Philox(key=key).random_raw(len(filled))
