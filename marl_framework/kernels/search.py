"""Contract of lattice searches, with P positions, A actions and maps of X × Y.

Compiled loops exist only for CPUs; other devices use the plain versions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.kernels.versions import Version, load


class Tables(NamedTuple):
    """Lookup tables with one row per lattice position (x·Y + y)·Z + z."""

    goals: Tensor
    """Position that each action leads to, [P, A] int64."""
    rows: Tensor
    """Row factors of the share of entropy that a reading removes, [P, X] float32."""
    cols: Tensor
    """Column factors of this share, [P, Y] float32."""
    near_rows: Tensor
    """Row weights of the entropy around the position, [P, X] float32."""
    near_cols: Tensor
    """Column weights of the entropy around the position, [P, Y] float32."""


def outlook(tables: Tables, places: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entropy that a reading at each goal removes, and the weighted entropy around it.

    Both are [B, A]. `places` are positions, [B] int64; `left` is the entropy map, [B, X, Y].
    """
    loops = load("search", Version.LOOPS)
    gains, around = torch.empty(2, len(places), tables.goals.shape[1])
    outputs = gains.numpy(), around.numpy()
    loops.outlook(*loops.arrays(places, left), loops.arrays(*tables), *outputs)
    return gains, around


def advance(tables: Tables, places: Tensor, parents: Tensor, left: Tensor) -> Tensor:
    """Return the entropy that paths leave after one more reading, [E, B, X, Y].

    Args:
        tables: lookup tables of the lattice.
        places: positions of the readings, [E, B] int64.
        parents: indices of the paths before, [E, B] int64.
        left: entropy that the paths before leave, [E, B', X, Y].
    """
    loops = load("search", Version.LOOPS)
    after = left.new_empty(*parents.shape, *left.shape[2:])
    inputs = loops.arrays(places, parents, tables.rows, tables.cols, left)
    loops.advance(*inputs, after.numpy())
    return after


def path_lengths(origins: Tensor, moves: Tensor, goals: Tensor, most: int) -> Tensor:
    """Return the number of moves from each origin to each position, [E, N, P] int64.

    Args:
        origins: positions, [E, N] int64.
        moves: allowed actions at each position, [E, P, A] bool.
        goals: position that each action leads to, [P, A] int64.
        most: largest number of moves; the result is most + 1 for longer and missing paths.
    """
    loops = load("search", Version.LOOPS)
    lengths = origins.new_empty(*origins.shape, len(goals))
    loops.path_lengths(*loops.arrays(origins, moves, goals), most, lengths.numpy())
    return lengths


def find_repeats(values: Tensor, ends: Tensor, tolerance: float) -> Tensor:
    """Mark ranked paths that end at the same position as a better path of equal value, [E, R].

    `values` [E, R] are sorted, highest first; `ends` [E, R] int64 are final positions. Values are
    equal up to the relative difference `tolerance`.
    """
    loops = load("search", Version.LOOPS)
    repeated = torch.empty(values.shape, dtype=torch.bool)
    loops.find_repeats(*loops.arrays(values, ends), tolerance, repeated.numpy())
    return repeated
