"""What searches for a path of one UAV take and find."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


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

    def search(
        self,
        position: Tensor,
        mask: Tensor,
        allowed_moves: Tensor,
        entropy: Tensor,
        horizon: Tensor,
        max_horizon: int,
    ) -> Plan:
        """Return the best path found.

        Args:
            position: where the UAV is, [E, 3].
            mask: its allowed first actions, [E, A].
            allowed_moves: actions that the mission allows, see `MissionState.moves`,
                [E, X, Y, Z, A].
            entropy: left around each lattice position, [E, X, Y].
            horizon: moves left, [E].
            max_horizon: no fewer than the most moves left.
        """
        ...
