"""Beam search over all moves left of one UAV, for all missions at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.compiled import LatticeLoops
from marl_framework.planners.search.protocol import Plan, Problem

_TOLERANCE = 1e-4  # of equal paths' values
_DIGITS = 5  # of a path's gain; equal paths stay equal, whatever rounding makes of them


@dataclass
class _Beams:
    """The best paths found so far for one UAV of each mission."""

    positions: Tensor
    """Ends of the paths, [E, B, 3] int64."""
    first: Tensor
    """Their first actions, [E, B] int64."""
    gain: Tensor
    """Entropy they remove, [E, B]; −inf: no path."""
    left: Tensor
    """Entropy they leave around each lattice position, [E, B, X, Y]; 1 is that of all cells
    around an average position, undecided."""


class BeamSearch:
    """Finds the path that removes the most entropy from a map, keeping the best of each length.

    Args:
        view: the missions' lattice.
        beams: paths kept; of those of equal gain and end just one.
    """

    def __init__(self, view: LatticeView, beams: int = 24) -> None:
        self._view = view
        loops = LatticeLoops.of(view)
        self._outlook = (loops or view).outlook
        self._repeats = repeats if loops is None else loops.repeats
        self._beams = beams
        self.numbers = (
            beams * view.lattice.num_actions * view.lattice.shape[0] * view.lattice.shape[1]
        )
        """In the largest array of a mission."""

    def search(self, problem: Problem) -> Plan:
        """Return the best path found, no longer than the moves left; see `PathSearch`."""
        position, mask, allowed_moves, entropy, horizon, max_horizon, _ = problem
        beams = _Beams(
            positions=position.unsqueeze(1),
            first=torch.zeros_like(position[:, :1]),
            gain=torch.zeros_like(entropy[:, :1, 0]),
            left=entropy.unsqueeze(1),
        )
        for depth in range(self._view.moves):
            allowed = mask.unsqueeze(1)
            if depth > 0:
                allowed = self._view.lattice.allowed(beams.positions, allowed_moves)
            flies = (depth < horizon).view(-1, 1, 1) if depth < max_horizon else None
            beams = self._grow(beams, allowed, flies, depth == 0)
        best = beams.gain.argmax(1)
        at = torch.arange(len(best), device=best.device)
        return Plan(beams.first[at, best], beams.left[at, best])

    def _grow(self, beams: _Beams, allowed: Tensor, flies: Tensor | None, root: bool) -> _Beams:
        """Make every path one move longer and keep the best.

        Where no mission has moves left, nothing is searched: the paths are only ranked again,
        which decides between those of equal gain.

        Args:
            beams: the paths.
            allowed: actions, [E, B, A].
            flies: whether the mission still has moves, [E, 1, 1] bool; None: no mission has.
            root: the paths have no first action yet.
        """
        view = self._view
        e, _, a = allowed.shape
        total = beams.gain.unsqueeze(2)
        if flies is None:
            goals = view.destinations(beams.positions)
            score = total = total.where(allowed, -torch.inf)
        else:
            goals, gains, pull = self._outlook(beams.positions, beams.left)
            total = (total + gains * flies).where(allowed, -torch.inf)
            score = total + pull * flies
        kept = self._best_different(score.round(decimals=_DIGITS).flatten(1), goals.flatten(1, 2))
        parent = kept // a
        at = torch.arange(e, device=kept.device).unsqueeze(1)
        actions = kept % a
        ends = goals[at, parent, actions]
        left = beams.left[at, parent]
        if flies is not None:
            left = torch.where(flies.unsqueeze(-1), view.after(ends, left), left)
        return _Beams(
            positions=ends,
            first=actions if root else beams.first[at, parent],
            gain=total.flatten(1).gather(1, kept),
            left=left,
        )

    def _best_different(self, scores: Tensor, goals: Tensor) -> Tensor:
        """Return the indices [E, B] of the best paths, of equal ones to the same place just one.

        Paths of the same score and end are mostly the same readings in another order.
        """
        wanted = min(self._beams, scores.shape[1])
        ranked = scores.topk(min(3 * wanted, scores.shape[1]), dim=1)
        end = self._view.lattice.places(goals).gather(1, ranked.indices)
        repeated = self._repeats(ranked.values, end, _TOLERANCE)
        order = ranked.values.masked_fill(repeated, -torch.inf).topk(wanted, dim=1).indices
        return ranked.indices.gather(1, order)


def repeats(values: Tensor, ends: Tensor, tolerance: float) -> Tensor:
    """Return which ranked paths end where a better one of the same value does, [E, R] bool.

    Args:
        values: the highest first, [E, R].
        ends: numbers of places, [E, R].
        tolerance: difference of equal values, as a share of them.
    """
    apart = (values.unsqueeze(2) - values.unsqueeze(1)).abs()
    same = (apart <= tolerance * values.abs().unsqueeze(2)) & (
        ends.unsqueeze(2) == ends.unsqueeze(1)
    )
    return same.tril(-1).any(-1)
