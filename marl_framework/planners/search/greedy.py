"""Greedy flights on the lattice, which estimate the value of a position.

Compiled loops replace tensor operators if the view's kernel version is `Version.LOOPS`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.kernels import search
from marl_framework.kernels.versions import Version
from marl_framework.observations.lattice_view import TIE_WEIGHT, LatticeView

_DIGITS = 5  # decimals of gains and scores; rounding makes near-equal values equal


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
    prior: Tensor | None = None
    """Prior probabilities of the first actions, [E, A]; None if unknown."""


class Plan(NamedTuple):
    """Best path in each of E missions."""

    action: Tensor
    """First action, [E] int64."""
    left: Tensor
    """Entropy that the path leaves around each lattice position, [E, X, Y]."""
    policy: Tensor | None = None
    """Share of simulations that began with each action, [E, A]; None without simulations."""


class Flight(NamedTuple):
    """B greedy flights to the end of the mission."""

    gains: Tensor
    """Entropy that the reading after each first action removes, [B, A]."""
    scores: Tensor
    """Gain plus a small pull towards nearby entropy, [B, A]; −inf for actions not allowed."""
    first: Tensor
    """First actions, [B]."""
    gain: Tensor
    """Entropy that the flights remove, [B]."""
    left: Tensor
    """Entropy that the flights leave around each lattice position, [B, X, Y]."""


def outlook(view: LatticeView, places: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Return gain and pull of each action, [E, B, A], at flat positions `places`, [E, B].

    See `LatticeView.score_actions`.
    """
    if view.version is not Version.LOOPS:
        _, gains, pull = view.score_actions(view.lattice.positions(places), left)
        return gains, pull
    gains, around = search.outlook(view.tables, places.flatten(), left.flatten(0, 1))
    return gains.view(*places.shape, -1), TIE_WEIGHT * around.view(*places.shape, -1)


def fly_greedily(view: LatticeView, problem: Problem) -> Flight:
    """Take the action with the highest score until no moves are left.

    The problem has B = E·K UAVs, K in each mission; only `allowed_moves` has E rows.
    """
    position, mask, allowed_moves, entropy, horizon, max_horizon, _ = problem
    if view.version is Version.LOOPS:
        places, moves = view.lattice.places(position), allowed_moves.flatten(1, 3)
        flights = places, mask, moves, entropy, horizon
        return Flight(*search.fly(view.tables, *flights, TIE_WEIGHT, _DIGITS))

    def score_actions() -> tuple[Tensor, Tensor, Tensor]:
        goals, gains, pull = view.score_actions(position, entropy)
        gains = gains.round(decimals=_DIGITS)
        scores = (gains + pull).round(decimals=_DIGITS)
        return goals, gains, scores.masked_fill(~mask, -torch.inf)

    goals, gains, scores = start = score_actions()
    total = torch.zeros_like(entropy[:, 0, 0])
    for move in range(max_horizon):
        if move:
            mask = view.lattice.allowed(position, allowed_moves)
            goals, gains, scores = score_actions()
        flies, action = move < horizon, scores.argmax(-1)
        position = goals.gather(1, action.view(-1, 1, 1).expand(-1, 1, 3)).squeeze(1)
        total = total + gains.gather(1, action.unsqueeze(1)).squeeze(1) * flies
        entropy = torch.where(flies.view(-1, 1, 1), view.apply_readings(position, entropy), entropy)
    return Flight(*start[1:], start[2].argmax(-1), total, entropy)
