"""Contract of searches on the lattice: P positions, A actions, maps of X × Y.

There are compiled loops for CPUs; elsewhere the plain versions run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_framework.kernels.versions import Kernel, Version, load

KERNELS = {
    "outlook": Kernel("observations.lattice_view.LatticeView.outlook", "outlook"),
    "fly": Kernel("planners.search.greedy.fly_greedily", "fly"),
    "find_repeats": Kernel("planners.search.beam.repeats", "find_repeats"),
}


class Tables(NamedTuple):
    """Effect of each of the P positions (x·Y + y)·Z + z."""

    goals: Tensor
    """Positions to which its actions lead, [P, A] int64."""
    rows: Tensor
    """Factors of the share that a reading removes, by row, [P, X] float32."""
    cols: Tensor
    """The same by column, [P, Y]."""
    near_rows: Tensor
    """Weights of the map around it, by row, [P, X] float32."""
    near_cols: Tensor
    """The same by column, [P, Y]."""


def outlook(tables: Tables, places: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Return the removed entropy and the weighted entropy around each goal, both [B, A].

    `places` are positions, [B] int64, `left` the entropy around lattice positions, [B, X, Y].
    """
    loops = load("search", Version.LOOPS)
    gains, around = torch.empty(2, len(places), tables.goals.shape[1])
    written = gains.numpy(), around.numpy()
    loops.outlook(*loops.arrays(places, left), loops.arrays(*tables), *written)
    return gains, around


def fly(
    tables: Tables,
    places: Tensor,
    first_allowed: Tensor,
    allowed_moves: Tensor,
    left: Tensor,
    horizon: Tensor,
    pull: float,
    digits: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Fly greedily until no moves are left.

    Args:
        tables: those of the lattice.
        places: first positions, [B] int64; equally many in each of E missions.
        first_allowed: first actions, [B, A] bool.
        allowed_moves: actions that missions allow, [E, P, A] bool.
        left: entropy around each lattice position, [B, X, Y].
        horizon: moves left, [B] int64.
        pull: weight of the entropy around goals.
        digits: to which gains and scores are rounded.

    Returns:
        Gains and scores of the first actions, [B, A]; the first action [B], the entropy removed by
        the flight [B] and left by it [B, X, Y].
    """
    loops = load("search", Version.LOOPS)
    gains, scores = torch.empty(2, *first_allowed.shape)
    first, total = torch.empty_like(places), left.new_empty(len(left))
    left = left.clone(memory_format=torch.contiguous_format)
    outcomes = gains, scores, first, total, left
    loops.fly(
        loops.arrays(places, first_allowed, allowed_moves, horizon),
        loops.arrays(*tables),
        np.float32(pull),
        np.float32(10**digits),
        loops.arrays(*outcomes),
    )
    return outcomes


def find_repeats(values: Tensor, ends: Tensor, tolerance: float) -> Tensor:
    """Return which ranked paths end where a better one of the same value does, [E, R] bool.

    `values` [E, R] are the highest first, `ends` [E, R] int64 are places; `tolerance` is the
    difference of equal values, as a share of them.
    """
    loops = load("search", Version.LOOPS)
    repeated = torch.empty(values.shape, dtype=torch.bool)
    loops.find_repeats(*loops.arrays(values, ends), tolerance, repeated.numpy())
    return repeated
