"""Greedy flights on the lattice, which estimate the value of a position.

Compiled loops replace tensor operators where the view has them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.kernels import search
from marl_framework.kernels.versions import Version
from marl_framework.observations.lattice_view import PULL, LatticeView

_DIGITS = 5  # of gains and scores; rounding makes equal ones equal


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


class Flight(NamedTuple):
    """B greedy flights to the end of the mission."""

    gains: Tensor
    """Entropy that the reading after each first action removes, [B, A]."""
    scores: Tensor
    """Gain plus a small pull towards the entropy nearby, [B, A]; −inf if not allowed."""
    first: Tensor
    """First actions, [B]."""
    gain: Tensor
    """Entropy that the flights remove, [B]."""
    left: Tensor
    """Entropy that they leave around each lattice position, [B, X, Y]."""


def outlook(view: LatticeView, positions: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return goals, gains and pull of each action; see `LatticeView.outlook`."""
    if view.version is not Version.LOOPS:
        return view.outlook(positions, left)
    places = view.lattice.places(positions)
    flat = places.flatten(), left.reshape(-1, *left.shape[-2:])
    gains, around = (each.view(*places.shape, -1) for each in search.outlook(view.tables, *flat))
    return view.destinations(positions), gains, PULL * around


def fly_greedily(view: LatticeView, problem: Problem) -> Flight:
    """Take the action with the highest score until no moves are left.

    The problem has B UAVs, the same number in each of E missions; `allowed_moves` has E rows.
    """
    position, mask, allowed_moves, entropy, horizon, max_horizon, _ = problem
    if view.version is Version.LOOPS:
        places, moves = view.lattice.places(position), allowed_moves.flatten(1, 3)
        flights = places, mask, moves, entropy, horizon
        return Flight(*search.fly(view.tables, *flights, PULL, _DIGITS))

    def options() -> tuple[Tensor, Tensor, Tensor]:
        goals, gains, pull = view.outlook(position, entropy)
        gains = gains.round(decimals=_DIGITS)
        scores = (gains + pull).round(decimals=_DIGITS)
        return goals, gains, scores.masked_fill(~mask, -torch.inf)

    goals, gains, scores = start = options()
    total = torch.zeros_like(entropy[:, 0, 0])
    for move in range(max_horizon):
        if move:
            mask = view.lattice.allowed(position, allowed_moves)
            goals, gains, scores = options()
        flies, action = move < horizon, scores.argmax(-1)
        position = goals.gather(1, action.view(-1, 1, 1).expand(-1, 1, 3)).squeeze(1)
        total = total + gains.gather(1, action.unsqueeze(1)).squeeze(1) * flies
        entropy = torch.where(flies.view(-1, 1, 1), view.after(position, entropy), entropy)
    return Flight(*start[1:], start[2].argmax(-1), total, entropy)
