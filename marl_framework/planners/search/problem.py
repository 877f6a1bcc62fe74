"""Search problem of one UAV, and its solution."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Problem(NamedTuple):
    """Search problem of one UAV in each of E missions."""

    position: Tensor
    """Lattice position, [E, 3]."""
    mask: Tensor
    """Allowed first actions, [E, A]."""
    allowed_moves: Tensor
    """Allowed actions at each position, [E, X, Y, Z, A]; see `MissionState.moves`."""
    entropy: Tensor
    """Entropy around each lattice position, [E, X, Y]."""
    horizon: Tensor
    """Number of moves left, [E]."""
    max_horizon: int
    """Upper bound of `horizon`."""


class Plan(NamedTuple):
    """Best path in each of E missions."""

    action: Tensor
    """First action, [E] int64."""
    left: Tensor
    """Entropy that the path leaves around each lattice position, [E, X, Y]."""
