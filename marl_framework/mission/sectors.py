"""Sectors of the area: each UAV of a team gets one near its start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor


class Sectors:
    """Cuts the area into a rectangle for each UAV of a team.

    The area is cut across its longer side, in proportion to the UAVs on both sides, until each UAV
    has a rectangle; with more UAVs than positions some get none. At every cut the UAVs that start
    further along that side get its far end: a k-d tree of the starts (Bentley 1975,
    doi 10.1145/361002.361007). The largest team has `team` UAVs, N, the lattice X × Y positions.
    """

    def __init__(self, team: int, shape: tuple[int, int], device: torch.device | str) -> None:
        self._depth = (team - 1).bit_length()
        nodes = 2 ** (self._depth + 1)  # of a tree; the children of node k are 2·k and 2·k + 1
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
        """Divide a rectangle, given by its positions [2, x, y], among UAVs of a team of `size`."""
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
            starts: lattice indices, [E, N, 3] int64; of equal ones the lower id comes first.
            sizes: number of UAVs of the teams, [E] int64.
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
        """Return 1 where positions lie in each UAV's sector, else 0, [E, N, X, Y] float32.

        Args:
            sectors: from `deal`, [E, N] int64.
            sizes: as for `deal`.
        """
        return self._maps[sizes.unsqueeze(1), sectors]
