"""Lengths of shortest paths around zones."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.mission.lattice import Lattice


def path_lengths(lattice: Lattice, moves: Tensor, origins: Tensor, most: int) -> Tensor:
    """Return the moves of the shortest paths from origins to everywhere, [E, N, X, Y, Z] int64.

    most + 1 where no path is so short. Every move can be flown back, so that these are the lengths
    of the ways back, too.

    Args:
        lattice: of the missions.
        moves: see `MissionState.moves`, [E, X, Y, Z, A].
        origins: lattice indices, [E, N, 3].
        most: longest path looked for.
    """
    _, size_y, size_z = lattice.shape
    e, n = origins.shape[:2]
    start = (origins[..., 0] * size_y + origins[..., 1]) * size_z + origins[..., 2]
    length = origins.new_full((e, n, moves[0, ..., 0].numel()), most + 1)
    length.scatter_(2, start.unsqueeze(-1), 0)
    open_moves = moves.flatten(1, 3).unsqueeze(1)  # [E, 1, P, A]
    places = torch.arange(length.shape[-1], device=length.device)
    steps = (lattice.offsets[:, 0] * size_y + lattice.offsets[:, 1]) * size_z + lattice.offsets[
        :, 2
    ]
    goals = (places.unsqueeze(1) + steps).clamp(
        0, length.shape[-1] - 1
    )  # closed beyond the lattice
    for _ in range(most):
        before = length
        for action in range(lattice.num_actions):
            ahead = before[..., goals[:, action]] + 1
            length = torch.where(open_moves[..., action], torch.minimum(length, ahead), length)
    return length.unflatten(-1, lattice.shape)
