"""Beam search over all remaining moves of one UAV, in all missions at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.kernels import search
from marl_framework.kernels.versions import Version
from marl_framework.observations.lattice_view import TIE_WEIGHT, LatticeView
from marl_framework.planners.search.problem import Plan, Problem

_TOLERANCE = 1e-4  # relative difference up to which scores count as equal
_DIGITS = 5  # decimals of scores; rounding makes near-equal scores equal


class _Beams(NamedTuple):
    """The B best paths for one UAV in each mission."""

    places: Tensor
    """Last positions of the paths, as flat indices, [E, B] int64."""
    first: Tensor
    """First actions, [E, B] int64."""
    gain: Tensor
    """Entropy that the paths remove, [E, B]; −inf if there is no path."""
    left: Tensor
    """Entropy that the paths leave around each lattice position, [E, B, X, Y], in units of the
    entropy around an average position whose cells are all undecided."""


class BeamSearch:
    """Keeps, for each path length, the `beams` paths that remove the most entropy from a map.

    Only one path is kept among paths with the same gain and the same end. With `rate_actions` the
    search keeps `beams` paths for each first action, and plans have the gains of all of them.
    """

    def __init__(self, view: LatticeView, beams: int = 24, rate_actions: bool = False) -> None:
        self._view = view
        self._repeats = search.find_repeats if view.version is Version.LOOPS else repeats
        self._beams, self._rate_actions = beams, rate_actions
        x, y, _ = view.lattice.shape
        actions = view.lattice.num_actions
        self.elements = beams * actions * x * y * (actions if rate_actions else 1)

    def over(self, view: LatticeView) -> BeamSearch:
        """Return the search over another view."""
        return BeamSearch(view, self._beams, self._rate_actions)

    def search(self, problem: Problem) -> Plan:
        """Return the best path found in each mission, limited to the mission's horizon.

        Without moves left, a mission's action is any allowed one. On a GPU, the host does not know
        the horizons: paths grow beyond them, but plans stay.
        """
        if not self._rate_actions:
            return self._search(problem)
        plans = self._search(problem.by_action())
        left = plans.left.unflatten(0, problem.mask.shape)
        gains = (problem.entropy.unsqueeze(1) - left).sum((2, 3))
        best = gains.masked_fill(~problem.mask, -torch.inf).argmax(1)
        at = torch.arange(len(best), device=best.device)
        return Plan(best, left[at, best], gains)

    def _search(self, problem: Problem) -> Plan:
        beams = _Beams(
            places=self._view.lattice.places(problem.position).unsqueeze(1),
            first=torch.zeros_like(problem.position[:, :1]),
            gain=torch.zeros_like(problem.entropy[:, :1, 0]),
            left=problem.entropy.unsqueeze(1),
        )
        plan = Plan(problem.mask.long().argmax(1), problem.entropy)
        moves = problem.allowed_moves.flatten(1, 3)
        at = torch.arange(len(problem.mask), device=moves.device)
        for depth in range(problem.max_horizon):
            beams = self._grow(beams, problem, moves, depth)
            best, flies = beams.gain.argmax(1), depth < problem.horizon
            action = beams.first[at, best].where(flies, plan.action)
            left = beams.left[at, best].where(flies.view(-1, 1, 1), plan.left)
            plan = Plan(action, left)
        return plan

    def _grow(self, beams: _Beams, problem: Problem, moves: Tensor, depth: int) -> _Beams:
        """Extend every path of length `depth` by one move and keep the best paths.

        `moves` are the allowed actions at each flat position, [E, P, A], or [1, P, A] for a view of
        windows.
        """
        goals = self._view.tables.goals[beams.places]
        at = torch.arange(len(goals), device=goals.device).unsqueeze(1)
        allowed = problem.mask.unsqueeze(1)
        if depth > 0:
            allowed = moves[at if len(moves) > 1 else 0, beams.places]
        gains, pull = outlook(self._view, beams.places, beams.left)
        total = (beams.gain.unsqueeze(2) + gains).where(allowed, -torch.inf)
        goals, actions = goals.flatten(1), allowed.shape[2]
        kept = self._select_distinct((total + pull).round(decimals=_DIGITS).flatten(1), goals)
        parent, places = kept // actions, goals.gather(1, kept)
        first = beams.first.gather(1, parent) if depth > 0 else kept % actions
        gain = total.flatten(1).gather(1, kept)
        return _Beams(places, first, gain, self._advance(places, parent, beams.left))

    def _advance(self, places: Tensor, parent: Tensor, before: Tensor) -> Tensor:
        """Return the entropy that paths leave after readings at `places`, [E, B]."""
        view = self._view
        if view.version is Version.LOOPS:
            return search.advance(view.tables, places, parent, before)
        at = torch.arange(len(parent), device=parent.device).unsqueeze(1)
        return view.apply_readings(places, before[at, parent])

    def _select_distinct(self, scores: Tensor, goals: Tensor) -> Tensor:
        """Return indices of the best paths without repeats (see `repeats`), [E, B]."""
        count = min(self._beams, scores.shape[1])
        ranked = scores.topk(min(3 * count, scores.shape[1]), dim=1)
        repeated = self._repeats(ranked.values, goals.gather(1, ranked.indices), _TOLERANCE)
        order = ranked.values.masked_fill(repeated, -torch.inf).topk(count, dim=1).indices
        return ranked.indices.gather(1, order)


def outlook(view: LatticeView, places: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Return gain and pull of each action, [E, B, A], at flat positions `places`, [E, B].

    See `LatticeView.score_actions`.
    """
    if view.version is not Version.LOOPS:
        return view.score_actions(places, left)
    gains, around = search.outlook(view.tables, places.flatten(), left.flatten(0, 1))
    return gains.view(*places.shape, -1), TIE_WEIGHT * around.view(*places.shape, -1)


def repeats(values: Tensor, ends: Tensor, tolerance: float) -> Tensor:
    """Return whether a higher-ranked path has the same value and the same end, [E, R] bool.

    `values`: scores in descending order, [E, R]. `ends`: indices of last positions, [E, R].
    Values count as equal up to a relative difference of `tolerance`.
    """
    difference = (values.unsqueeze(2) - values.unsqueeze(1)).abs()
    equal = difference <= tolerance * values.abs().unsqueeze(2)
    return (equal & (ends.unsqueeze(2) == ends.unsqueeze(1))).tril(-1).any(-1)
