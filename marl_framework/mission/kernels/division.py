"""How the lattice divides the axes of a map, for sums over contiguous cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


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
    inner: Any
    """Weight of the cells in between, float32; one for each axis of several."""


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


def divide_each(sizes: Sequence[int], shares: int) -> Division:
    """Return the divisions of several axes in one, an axis first in every array.

    Axes smaller than `shares` are divided as if they had that many cells.
    """
    divisions = [divide(max(cells, shares), shares) for cells in sizes]
    longest = max(len(division.bins) for division in divisions)

    def stacked(arrays: Sequence[Any], length: int) -> np.ndarray[Any, Any]:
        padded = np.zeros((len(arrays), length, *arrays[0].shape[1:]), arrays[0].dtype)
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
        return padded

    *tables, inner = zip(*divisions, strict=True)
    lengths = (longest, longest, shares, shares, shares, shares)
    return Division._make([*map(stacked, tables, lengths), np.array(inner)])
