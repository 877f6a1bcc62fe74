"""Compiled window loops on tensors in the CPU's memory; see `window_loops`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

try:
    from numba import get_num_threads, set_num_threads

    from marl_framework.kernels import window_loops
except (ImportError, RuntimeError):  # no numba, or no place for its cache: the twins do the work
    _AVAILABLE = False
else:
    _AVAILABLE = True
    _MOST_THREADS = get_num_threads()


class Division(NamedTuple):
    """How an axis of cells is divided into equal shares, none smaller than a cell."""

    bins: np.ndarray[Any, Any]
    """The first and the last share that a cell overlaps, [cells, 2] int64."""
    weights: np.ndarray[Any, Any]
    """The cell's weight in their means, [cells, 2] float32; the second is 0 if they are one."""
    inner_low: np.ndarray[Any, Any]
    """First cell that lies in a share as a whole, [shares] int64."""
    inner_high: np.ndarray[Any, Any]
    """One past the last one."""
    left: np.ndarray[Any, Any]
    """Weight of the cell before `inner_low`, [shares] float32."""
    right: np.ndarray[Any, Any]
    """Weight of the cell `inner_high`, [shares] float32."""
    inner: np.float32
    """Weight of the cells in between."""


def divide(cells: int, shares: int) -> Division:
    """Return how `cells` cells are divided into `shares` shares, in whole-number arithmetic."""
    c, s = np.arange(cells), np.arange(shares)
    first, last = c * shares // cells, ((c + 1) * shares - 1) // cells
    in_first = np.minimum((first + 1) * cells, (c + 1) * shares) - c * shares
    in_last = np.where(first == last, 0, (c + 1) * shares - last * cells)
    low, high = -(-s * cells // shares), (s + 1) * cells // shares
    return Division(
        bins=np.stack((first, last), axis=1),
        weights=(np.stack((in_first, in_last), axis=1) / cells).astype(np.float32),
        inner_low=low,
        inner_high=high,
        left=((low * shares - s * cells) / cells).astype(np.float32),
        right=(((s + 1) * cells - high * shares) / cells).astype(np.float32),
        inner=np.float32(shares / cells),
    )


class WindowLoops:
    """The loops for maps of one shape.

    All tensors are contiguous and lie on the CPU; maps are updated in place.

    Args:
        map_shape: (R, C).
        shape: lattice (X, Y), no finer than the map.
    """

    def __init__(self, map_shape: tuple[int, int], shape: tuple[int, int]) -> None:
        self._rows, self._cols = (divide(n, m) for n, m in zip(map_shape, shape, strict=True))

    @staticmethod
    def available() -> bool:
        """Return whether numba is here."""
        return _AVAILABLE

    def measure(
        self,
        truth: Tensor,
        bits: Tensor,
        flip_below: Tensor,
        boxes: Tensor,
        active: Tensor,
        odds: Tensor,
        readings: Tensor,
        beliefs: Tensor,
        pooled: Tensor,
    ) -> None:
        """Take a reading at each UAV and put it into its own belief.

        Args:
            truth: [E, R, C] bool.
            bits: [E, N, K_x, K_y] int16.
            flip_below: bits below this read wrongly, [E, N] int16.
            boxes: [E, N, 6] int64: row0, row1, col0, col1, window_row, window_col.
            active: missions to touch, [E] bool.
            odds: what a positive and a negative reading multiply odds with, [E, N, 2].
            readings: [E, N, K_x, K_y] int8, written.
            beliefs: [E, N, R, C], updated.
            pooled: area means of the beliefs [E, N, X, Y], updated.
        """
        arrays = _views(truth, bits, flip_below, boxes, active, readings, beliefs, pooled, odds)
        window_loops.measure(*arrays, self._rows, self._cols)

    def fuse_heard(
        self,
        readings: Tensor,
        listens: Tensor,
        boxes: Tensor,
        odds: Tensor,
        beliefs: Tensor,
        pooled: Tensor,
    ) -> None:
        """Update own beliefs with the readings listened to ([E, N, N] bool), in order of ids."""
        arrays = _views(readings, listens, boxes, beliefs, pooled, odds)
        window_loops.fuse_heard(*arrays, self._rows, self._cols)

    def fuse_global(
        self,
        readings: Tensor,
        boxes: Tensor,
        active: Tensor,
        odds: Tensor,
        belief: Tensor,
        pooled: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Update global beliefs [E, R, C] with all readings.

        Returns:
            Sums over the changed cells of w(after)·(H(before) - H(after)) and of
            (w(after) - w(before))·H(before), [E] float64.
        """
        gain, reweighted = torch.empty(2, len(belief), dtype=torch.float64)
        arrays = _views(readings, boxes, active, belief, pooled, odds)
        sums = _views(gain, reweighted)
        window_loops.fuse_global(*arrays, self._rows, self._cols, *sums)
        return gain, reweighted


def _views(*tensors: Tensor) -> list[Any]:
    """Return arrays on the tensors' memory, and give numba as many threads as PyTorch has."""
    set_num_threads(min(torch.get_num_threads(), _MOST_THREADS))
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("window loops need contiguous tensors")
    return [tensor.numpy() for tensor in tensors]
