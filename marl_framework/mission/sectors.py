"""Sectors of the area: each UAV is assigned a sector near its start position."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor


class Sectors:
    """Divides the area into one rectangle per UAV of a team.

    The area is cut across its longer side, in proportion to the number of UAVs on each side, until
    each UAV has a rectangle; with many UAVs for the positions, some are empty. At each cut, UAVs
    that start further along the side get the far part: a k-d tree of start positions (Bentley 1975,
    doi 10.1145/361002.361007). Only positions of the field count, and only they are in sectors.

    `team` is the size N of the largest team, `shape` the number of positions, (X, Y). `field` has
    the positions of the field, [X, Y] bool; None for all.
    """

    def __init__(
        self,
        team: int,
        shape: tuple[int, int],
        device: torch.device | str,
        field: Tensor | None = None,
    ) -> None:
        self._depth = (team - 1).bit_length()
        nodes = 2 ** (self._depth + 1)  # of a binary tree; children of node k: 2·k and 2·k + 1
        self._axis = torch.zeros(team + 1, nodes, dtype=torch.int64)
        self._before = torch.full((team + 1, nodes), team)
        self._sector = torch.full((team + 1, nodes), team)
        self._maps = torch.full((team + 1, *shape), -1)  # sector of each position
        whole = torch.ones(shape, dtype=torch.bool) if field is None else field
        for size in range(1, team + 1):
            self._cut(size, 1, size, whole, self._maps[size], count())
            self._maps[size][~whole] = -1
        for name in ("_axis", "_before", "_sector", "_maps"):
            setattr(self, name, getattr(self, name).to(device))

    def _cut(
        self, size: int, node: int, team: int, area: Tensor, maps: Tensor, numbers: Iterator[int]
    ) -> None:
        """Divide `area` [x, y] bool among `team` of `size` UAVs; write sectors to `maps` [x, y]."""
        if team == 1:
            sector = next(numbers)
            maps.fill_(sector)
            while node < self._sector.shape[1]:
                self._sector[size, node] = sector
                node *= 2
            return
        first = team // 2
        axis = 0 if area.shape[0] >= area.shape[1] else 1
        middle = _place_of_cut([int(n) for n in area.sum(1 - axis)], first, team)
        self._axis[size, node], self._before[size, node] = axis, first
        parts = (each.tensor_split([middle], dim=axis) for each in (area, maps))
        (low, high), (low_maps, high_maps) = parts
        self._cut(size, 2 * node, first, low, low_maps, numbers)
        self._cut(size, 2 * node + 1, team - first, high, high_maps, numbers)

    def deal(self, starts: Tensor, sizes: Tensor) -> Tensor:
        """Return the index of each UAV's sector, [E, N] int64; N for UAVs beyond the team.

        `starts` are lattice indices, [E, N, 3] int64; equal starts are sorted by UAV id. `sizes`
        are the numbers of UAVs in the teams, [E] int64.
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

        `sectors` are indices from `deal`, [E, N] int64; `sizes` are the numbers of UAVs, [E] int64.
        """
        maps = self._maps[sizes].unsqueeze(1) == sectors[..., None, None]
        return maps.to(torch.float32)


def _place_of_cut(counts: list[int], first: int, team: int) -> int:
    """Return the row before which `first` of `team` equal shares of the positions end.

    `counts` are the numbers of positions of the rows. Between rows, the nearer end is taken, and
    the even one of two.
    """
    share, before = sum(counts) * first / team, 0
    for row, number in enumerate(counts):
        if number and before + number >= share:
            return round(row + (share - before) / number)
        before += number
    return round(len(counts) * first / team)  # without positions
