"""Greedy flights on the lattice: how good a place is to be in, judged by flying on from there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.compiled import LatticeLoops

_DIGITS = 5  # of gains; equal ones stay equal, whatever rounding makes of them


class Outlook(NamedTuple):
    """What each action would bring next."""

    goals: Tensor
    """Where it leads, [B, A, 3]."""
    gains: Tensor
    """Entropy that the reading there removes, [B, A]."""
    scores: Tensor
    """The gain and a small pull towards what lies around, [B, A]; −inf where not allowed."""


class Flight(NamedTuple):
    """Greedy flights to the end of the mission."""

    outlook: Outlook
    """Of their first move."""
    first: Tensor
    """Their first actions, [B]."""
    gain: Tensor
    """Entropy that they remove, [B]."""
    left: Tensor
    """What they leave around each lattice position, [B, X, Y]."""


def outlook(view: LatticeView, position: Tensor, left: Tensor, allowed: Tensor) -> Outlook:
    """Return what each action of a UAV would bring.

    Args:
        view: the lattice.
        position: where it is, [B, 3].
        left: entropy around each lattice position, [B, X, Y].
        allowed: actions, [B, A].
    """
    goals, gains, pull = view.outlook(position, left)
    gains = gains.round(decimals=_DIGITS)
    scores = (gains + pull).round(decimals=_DIGITS)
    return Outlook(goals, gains, scores.masked_fill(~allowed, -torch.inf))


def fly_greedily(
    view: LatticeView,
    position: Tensor,
    allowed_moves: Tensor,
    entropy: Tensor,
    horizon: Tensor,
    max_horizon: int,
    first_allowed: Tensor | None = None,
    loops: LatticeLoops | None = None,
) -> Flight:
    """Make the move of the best outlook until no moves are left.

    Args:
        view: the lattice.
        position: where each UAV starts, [B, 3]; as many in each mission.
        allowed_moves: actions that missions allow, see `MissionState.moves`, [E, X, Y, Z, A].
        entropy: left around each lattice position, [B, X, Y].
        horizon: moves left, [B].
        max_horizon: no fewer than the most moves left.
        first_allowed: first actions, [B, A]; those of `allowed_moves` without it.
        loops: to fly with instead of plain operators.
    """
    if first_allowed is None:
        first_allowed = view.lattice.allowed(position, allowed_moves)
    if loops is not None:
        gains, scores, first, gain, entropy = loops.fly(
            position, first_allowed, allowed_moves, entropy, horizon, _DIGITS
        )
        start = Outlook(view.destinations(position), gains, scores)
        return Flight(start, first, gain, entropy)
    start = ahead = outlook(view, position, entropy, first_allowed)
    first = action = start.scores.argmax(-1)
    gain = torch.zeros_like(entropy[:, 0, 0])
    for move in range(max_horizon):
        if move:
            ahead = outlook(view, position, entropy, view.lattice.allowed(position, allowed_moves))
            action = ahead.scores.argmax(-1)
        flies = move < horizon
        position = ahead.goals.gather(1, action.view(-1, 1, 1).expand(-1, 1, 3)).squeeze(1)
        gain = gain + ahead.gains.gather(1, action.unsqueeze(1)).squeeze(1) * flies
        entropy = torch.where(flies.view(-1, 1, 1), view.after(position, entropy), entropy)
    return Flight(start, first, gain, entropy)
