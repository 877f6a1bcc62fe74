"""Lengths of shortest paths around zones."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.mission.lattice import Lattice


def path_lengths(lattice: Lattice, moves: Tensor, origins: Tensor, most: int) -> Tensor:
    """Return the number of moves of the shortest path to each position, [E, N, X, Y, Z] int64.

    It is most + 1 if there is no shorter path. Every move can be reversed, so the lengths are also
    those of the paths back.

    Args:
        lattice: lattice of the missions.
        moves: see `MissionState.moves`, [E, X, Y, Z, A].
        origins: lattice indices, [E, N, 3].
        most: greatest length to search for.
    """
    e, n = origins.shape[:2]
    length = origins.new_full((e, n, moves[0, ..., 0].numel()), most + 1)
    length.scatter_(2, lattice.places(origins).unsqueeze(-1), 0)
    open_moves = moves.flatten(1, 3).unsqueeze(1)  # [E, 1, P, A]
    last = length.shape[-1] - 1
    places = torch.arange(last + 1, device=length.device)
    goals = (places.unsqueeze(1) + lattice.places(lattice.offsets)).clamp(0, last)
    for _ in range(most):
        before = length
        for action in range(lattice.num_actions):
            ahead = before[..., goals[:, action]] + 1
            length = torch.where(open_moves[..., action], torch.minimum(length, ahead), length)
    return length.unflatten(-1, lattice.shape)
