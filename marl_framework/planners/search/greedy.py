"""Greedy flights on the lattice, which estimate the value of a position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.compiled import LatticeLoops
from marl_framework.planners.search.protocol import Problem

_DIGITS = 5  # of gains and scores; rounding makes equal ones equal


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


def fly_greedily(view: LatticeView, problem: Problem, loops: LatticeLoops | None = None) -> Flight:
    """Take the action with the highest score until no moves are left.

    Args:
        view: lattice of the missions.
        problem: B UAVs, the same number in each of E missions; `allowed_moves` has E rows.
        loops: compiled loops, to use instead of tensor operators.
    """
    position, mask, allowed_moves, entropy, horizon, max_horizon, _ = problem
    if loops is not None:
        return Flight(*loops.fly(position, mask, allowed_moves, entropy, horizon, _DIGITS))

    def outlook() -> tuple[Tensor, Tensor, Tensor]:
        goals, gains, pull = view.outlook(position, entropy)
        gains = gains.round(decimals=_DIGITS)
        scores = (gains + pull).round(decimals=_DIGITS)
        return goals, gains, scores.masked_fill(~mask, -torch.inf)

    goals, gains, scores = start = outlook()
    total = torch.zeros_like(entropy[:, 0, 0])
    for move in range(max_horizon):
        if move:
            mask = view.lattice.allowed(position, allowed_moves)
            goals, gains, scores = outlook()
        flies, action = move < horizon, scores.argmax(-1)
        position = goals.gather(1, action.view(-1, 1, 1).expand(-1, 1, 3)).squeeze(1)
        total = total + gains.gather(1, action.unsqueeze(1)).squeeze(1) * flies
        entropy = torch.where(flies.view(-1, 1, 1), view.after(position, entropy), entropy)
    return Flight(*start[1:], start[2].argmax(-1), total, entropy)
