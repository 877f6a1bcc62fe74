"""Input and output of searches for the path of one UAV."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Problem(NamedTuple):
    """One UAV in each of E missions and the entropy it can remove."""

    position: Tensor
    """Lattice position, [E, 3]."""
    mask: Tensor
    """Allowed first actions, [E, A]."""
    allowed_moves: Tensor
    """Actions that the missions allow, see `MissionState.moves`, [E, X, Y, Z, A]."""
    entropy: Tensor
    """Entropy around each lattice position, [E, X, Y]."""
    horizon: Tensor
    """Number of moves left, [E]."""
    max_horizon: int
    """Upper bound of `horizon`."""
    prior: Tensor | None = None
    """Probabilities of the first actions before the search, [E, A]; None if unknown."""


class Plan(NamedTuple):
    """The best path of each of E missions."""

    action: Tensor
    """First action, [E] int64."""
    left: Tensor
    """Entropy that the path leaves around each lattice position, [E, X, Y]."""
    policy: Tensor | None = None
    """Share of the simulations that began with each action, [E, A]; None without simulations."""
