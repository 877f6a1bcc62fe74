"""Compiled loops of searches, for one lattice."""

from __future__ import annotations

from torch import Tensor

from marl_framework.kernels import search
from marl_framework.kernels.versions import Version
from marl_framework.observations.lattice_view import PULL, LatticeView


class LatticeLoops:
    """The kernels of `kernels.search` on the lattice of a view.

    Args:
        view: the lattice.
    """

    def __init__(self, view: LatticeView) -> None:
        self._view = view

    @classmethod
    def of(cls, view: LatticeView) -> LatticeLoops | None:
        """Return the loops; None if the view uses plain operators."""
        return cls(view) if view.version is Version.LOOPS else None

    def outlook(self, positions: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `LatticeView.outlook`."""
        places = self._view.lattice.places(positions)
        flat = places.flatten(), left.reshape(-1, *left.shape[-2:])
        gains, around = (
            each.view(*places.shape, -1) for each in search.outlook(self._view.tables, *flat)
        )
        return self._view.destinations(positions), gains, PULL * around

    def fly(
        self,
        positions: Tensor,
        first_allowed: Tensor,
        allowed_moves: Tensor,
        left: Tensor,
        horizon: Tensor,
        digits: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """See `search.fly`; from positions [B, 3] and with `allowed_moves` [E, X, Y, Z, A]."""
        places, moves = self._view.lattice.places(positions), allowed_moves.flatten(1, 3)
        flights = places, first_allowed, moves, left, horizon
        return search.fly(self._view.tables, *flights, PULL, digits)

    repeats = staticmethod(search.find_repeats)
