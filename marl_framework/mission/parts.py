"""Parts of the area, one for each UAV of a team, known to all without a word."""

from __future__ import annotations

import torch
from torch import Tensor


def team_parts(team: int, shape: tuple[int, int]) -> Tensor:
    """Return which lattice positions are whose part, [N, X, Y] bool.

    The area is cut across its longer side, in proportion to the UAVs of both sides, until each has
    a rectangle of its own; with more UAVs than positions some get none.

    Args:
        team: number of UAVs N.
        shape: of the lattice, X and Y.
    """
    parts = torch.zeros(team, *shape, dtype=torch.bool)
    _cut(parts)
    return parts


def _cut(parts: Tensor) -> None:
    """Give every position of a rectangle [N, X, Y] to one of N UAVs."""
    team, *sides = parts.shape
    if team == 1:
        parts.fill_(True)
        return
    first = team // 2
    axis = 1 if sides[0] >= sides[1] else 2
    before = round(parts.shape[axis] * first / team)
    _cut(parts[:first].narrow(axis, 0, before))
    _cut(parts[first:].narrow(axis, before, parts.shape[axis] - before))


def parts_of_teams(team: int, shape: tuple[int, int]) -> Tensor:
    """Return `team_parts` of teams of all sizes up to N, [N + 1, N, X, Y] float32."""
    parts = torch.zeros(team + 1, team, *shape)
    for size in range(1, team + 1):
        parts[size, :size] = team_parts(size, shape).float()
    return parts
