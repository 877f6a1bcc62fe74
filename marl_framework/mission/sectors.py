"""Sectors of the area: each UAV is assigned a sector near its start position."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor


class Sectors:
    """Divides the area into one rectangle per UAV of a team.

    The area is cut across its longer side, in proportion to the number of UAVs on each side, until
    each UAV has a rectangle; if UAVs outnumber positions, some sectors are empty. At each cut, UAVs
    that start further along the side get the far part: a k-d tree of start positions (Bentley 1975,
    doi 10.1145/361002.361007). `team` is the size N of the largest team; `shape` is (X, Y).
    """

    def __init__(self, team: int, shape: tuple[int, int], device: torch.device | str) -> None:
        self._depth = (team - 1).bit_length()
        nodes = 2 ** (self._depth + 1)  # of a binary tree; children of node k: 2·k and 2·k + 1
        self._axis = torch.zeros(team + 1, nodes, dtype=torch.int64)
        self._before = torch.full((team + 1, nodes), team)
        self._sector = torch.full((team + 1, nodes), team)
        self._maps = torch.zeros(team + 1, team + 1, *shape)
        for size in range(1, team + 1):
            whole = torch.ones(shape, dtype=torch.bool).nonzero().T
            self._cut(size, 1, size, whole.view(2, *shape), count())
        for name in ("_axis", "_before", "_sector", "_maps"):
            setattr(self, name, getattr(self, name).to(device))

    def _cut(self, size: int, node: int, team: int, area: Tensor, numbers: Iterator[int]) -> None:
        """Divide the positions `area` [2, x, y] among `team` UAVs; the whole team has `size`."""
        if team == 1:
            sector = next(numbers)
            self._maps[size, sector, area[0], area[1]] = 1.0
            while node < self._sector.shape[1]:
                self._sector[size, node] = sector
                node *= 2
            return
        first = team // 2
        axis = 0 if area.shape[1] >= area.shape[2] else 1
        middle = round(area.shape[1 + axis] * first / team)
        self._axis[size, node], self._before[size, node] = axis, first
        low, high = area.tensor_split([middle], dim=1 + axis)
        self._cut(size, 2 * node, first, low, numbers)
        self._cut(size, 2 * node + 1, team - first, high, numbers)

    def deal(self, starts: Tensor, sizes: Tensor) -> Tensor:
        """Return the index of each UAV's sector, [E, N] int64; N for UAVs beyond the team.

        Args:
            starts: lattice indices, [E, N, 3] int64; equal starts are sorted by UAV id.
            sizes: number of UAVs in each team, [E] int64.
        """
        team = starts.shape[1]
        ids = torch.arange(team, device=starts.device)
        sizes = sizes.unsqueeze(1)
        node = (ids < sizes).long()
        for _ in range(self._depth):
            axis = self._axis[sizes, node]
            place = starts[..., 0].where(axis == 0, starts[..., 1]) * team + ids
            earlier = (place.unsqueeze(1) < place.unsqueeze(2)) & (
                node.unsqueeze(1) == node.unsqueeze(2)
            )
            node = 2 * node + (earlier.sum(2) >= self._before[sizes, node])
        return self._sector[sizes, node]

    def maps(self, sectors: Tensor, sizes: Tensor) -> Tensor:
        """Return a map of each UAV's sector, 1 inside and 0 outside, [E, N, X, Y] float32.

        Args:
            sectors: sector indices from `deal`, [E, N] int64.
            sizes: number of UAVs in each team, [E] int64.
        """
        return self._maps[sizes.unsqueeze(1), sectors]
