"""What searches for a path of one UAV take and find."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class Problem(NamedTuple):
    """Where one UAV of each of E missions is, and what there is to find."""

    position: Tensor
    """Where it is, [E, 3]."""
    mask: Tensor
    """Its allowed first actions, [E, A]."""
    allowed_moves: Tensor
    """Actions that the mission allows, see `MissionState.moves`, [E, X, Y, Z, A]."""
    entropy: Tensor
    """Left around each lattice position, [E, X, Y]."""
    horizon: Tensor
    """Moves left, [E]."""
    max_horizon: int
    """No fewer than the most moves left."""
    prior: Tensor | None = None
    """How promising each first action is before the search, shares [E, A]; None: not known."""


class Plan(NamedTuple):
    """The best path found, in E missions."""

    action: Tensor
    """Its first action, [E] int64."""
    left: Tensor
    """Entropy that it leaves around each lattice position, [E, X, Y]."""
    policy: Tensor | None = None
    """How often the search tried each first action, shares [E, A]; None where it does not count."""


class PathSearch(Protocol):
    """Finds a path of one UAV on a map."""

    numbers: int
    """In the largest array of a mission."""

    def search(self, problem: Problem) -> Plan:
        """Return the best path found."""
        ...
