"""Compiled loops of a search on tensors in the CPU's memory; see `loops`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_framework.mission.kernels.cpu import WindowLoops, views
from marl_framework.observations.lattice_view import PULL, LatticeView

if WindowLoops.available():
    from marl_framework.planners.search import loops


class LatticeLoops:
    """The loops for one lattice.

    Args:
        view: the lattice.
    """

    def __init__(self, view: LatticeView) -> None:
        goals, rows, cols, *near = _read(*view.tables)
        self._view = view
        self._tables = goals, rows, cols, tuple(near)

    @classmethod
    def of(cls, view: LatticeView) -> LatticeLoops | None:
        """Return the loops; None where plain operators are to be used."""
        return cls(view) if view.compiles else None

    def outlook(self, positions: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each action would bring; see `LatticeView.outlook`."""
        places = self._view.lattice.places(positions)
        gains, around = torch.empty(2, *places.shape, self._view.lattice.num_actions)
        maps = left.reshape(-1, *left.shape[-2:])
        written = views(gains.flatten(0, -2), around.flatten(0, -2))
        loops.outlook(*_read(places.flatten(), maps), *self._tables, *written)
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
        """Fly greedily until no moves are left.

        Args:
            positions: where each UAV starts, [B, 3]; as many in each mission.
            first_allowed: first actions, [B, A].
            allowed_moves: actions that missions allow, [E, X, Y, Z, A].
            left: entropy around each lattice position, [B, X, Y].
            horizon: moves left, [B].
            digits: that gains and scores are rounded to.

        Returns:
            Gains and scores of the first actions, [B, A]; the first action [B], what the flight
            removes [B] and what it leaves [B, X, Y].
        """
        places = self._view.lattice.places(positions)
        gains, scores = torch.empty(2, *first_allowed.shape)
        first, total = torch.empty_like(places), left.new_empty(len(left))
        left = left.clone(memory_format=torch.contiguous_format)
        loops.fly(
            *_read(places, first_allowed, allowed_moves.flatten(1, 3), horizon),
            *self._tables,
            np.float32(PULL),
            np.float32(10**digits),
            *views(gains, scores, first, total, left),
        )
        return gains, scores, first, total, left

    @staticmethod
    def repeats(values: Tensor, ends: Tensor, tolerance: float) -> Tensor:
        """Return which paths end where a better one of the same value does; see `beam.repeats`."""
        repeated = torch.empty(values.shape, dtype=torch.bool)
        loops.find_repeats(*_read(values, ends), tolerance, repeated.numpy())
        return repeated


def _read(*tensors: Tensor) -> list[Any]:
    """Return arrays to read."""
    return views(*(tensor.contiguous() for tensor in tensors))
