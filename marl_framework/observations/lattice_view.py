"""Maps on the lattice: entropy around each position, and the share that a reading removes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels.cells import entropy, interval_overlap, part_sums
from marl_framework.kernels.search import Tables
from marl_framework.kernels.versions import Version, version_for
from marl_framework.mission.accuracy import GPU_CELLS
from marl_framework.mission.camera import Camera
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.sensor import entropy_left

PULL = 1e-3
"""Weight of the entropy around a path's end."""


class Features(NamedTuple):
    """p, H(p) and p·H(p) of beliefs on the lattice."""

    fine: Tensor
    """Means over the parts of each lattice cell, [..., 3, parts·X, parts·Y]."""
    coarse: Tensor
    """Sums over each lattice cell, [..., 3, X, Y]; 1 stands for all cells of an average one."""


class LatticeView:
    """Sees maps and readings on the lattice; a cell belongs to the nearest position.

    Args:
        config: the missions.
        lattice: allowed actions, and their goals.
        parts: number of parts of each position's cells in `fine`, along both axes.

    Attributes:
        moves: number of moves of the longest mission.
        has_inactive: whether some UAVs do not fly all the time.
        version: version of the kernels.
        tables: effect of each of the P positions.
    """

    def __init__(self, config: Config, lattice: Lattice, parts: int = 1) -> None:
        self.lattice = lattice
        self.moves = config.missions.episode_length
        self.has_inactive = config.missions.has_inactive
        device = lattice.offsets.device
        self.version = version_for(config.compute, device)
        camera = Camera(config, "cpu")
        spacing, self._shape = config.experiment.constraints.spacing, camera.shape
        self._cells, self._fine, shares, numbers = [], [], [], []
        for axis, size in enumerate(camera.shape):
            edges = _borders(lattice.shape[axis], spacing / config.geometry.cell_size[axis], size)
            low, high = (bound.double().unsqueeze(-1) for bound in camera.spans(axis))
            width = (edges[1:] - edges[:-1]).clamp(min=1e-9)
            shares.append(interval_overlap(low, high, edges[:-1], width).float().to(device))
            self._cells.append(_members(edges, size).to(device))
            ways = torch.arange(parts, dtype=edges.dtype) / parts
            inner = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * ways
            members = _members(torch.cat((inner.flatten(), edges[-1:])), size)
            numbers.append(members.sum(1).to(device))
            means = members / members.sum(1, keepdim=True).clamp(min=1)
            self._fine.append(means.to(device))
        self._part_ends = [each.cumsum(0).long() for each in numbers]
        self._part_cells = numbers[0].unsqueeze(1) * numbers[1]
        self._unit = lattice.shape[0] * lattice.shape[1] / (camera.shape[0] * camera.shape[1])
        self._tabulate(shares, 1 - entropy_left(camera.error_rates).to(device))

    def _tabulate(self, shares: list[Tensor], removed: Tensor) -> None:
        """Make the tables, a row for each position, from shares covered and entropy removed."""
        shape, device = self.lattice.shape, removed.device
        along = [torch.arange(n, device=device) for n in shape]
        apart = [(index.unsqueeze(1) - index).abs() for index in along[:2]]
        near = [torch.exp(-math.log(2) * moves) for moves in apart]  # halved by every move
        places = torch.cartesian_prod(*along)
        x, y, z = places.unbind(-1)
        self._goals = self.lattice.nearest_destinations(places)  # [P, A, 3]
        goals = self.lattice.places(self._goals)
        rows = shares[0][x, z] * removed[z].unsqueeze(-1)
        self.tables = Tables(goals, rows, shares[1][y, z], near[0][x], near[1][y])
        _, rows, cols, near_rows, near_cols = self.tables
        self._goal_rows = torch.cat((rows[goals], near_rows[goals]), 1)  # [P, 2·A, X]
        self._goal_cols = torch.cat((cols[goals], near_cols[goals]), 1)

    def sums(self, maps: Tensor) -> Tensor:
        """Return sums over each position's cells, [..., X, Y] of [..., R, C].

        1 stands for the cells of an average position.
        """
        return self._cells[0] @ maps @ self._cells[1].mT * self._unit

    def sizes(self) -> Tensor:
        """Return the number of cells of each position, [X, Y], in units of `sums`."""
        return self.sums(torch.ones((), device=self._cells[0].device).expand(self._shape))

    def spread(self, sums: Tensor) -> Tensor:
        """Return each cell's share of its position's sum, [..., R, C] of [..., X, Y]."""
        return self._cells[0].mT @ (sums / self.sizes().clamp(min=1e-9)) @ self._cells[1]

    def fine(self, maps: Tensor) -> Tensor:
        """Return means over the parts of each position's cells, [..., parts·X, parts·Y]."""
        return self._fine[0] @ maps @ self._fine[1].mT

    def entropy_maps(self, beliefs: Tensor) -> Features:
        """Return the features of beliefs [..., R, C]."""
        if self.version is not Version.PLAIN:
            parts = part_sums(self.version, beliefs, *self._part_ends)
            fine = parts / self._part_cells.clamp(min=1)
            x, y = self.lattice.shape[:2]
            sums = parts.unflatten(-1, (y, -1)).unflatten(-3, (x, -1)).sum((-3, -1))
            return Features(fine, sums * self._unit)
        if beliefs.device.type == "cuda":  # thousands of missions may see predictions at once
            return self.entropy_maps_in_chunks(beliefs, GPU_CELLS)
        return self._entropy_maps(beliefs)

    def entropy_maps_in_chunks(self, beliefs: Tensor, cells: int) -> Features:
        """Return `entropy_maps` by plain operators, of maps with this many cells at once."""
        *lead, rows, cols = beliefs.shape
        parts = beliefs.reshape(-1, rows, cols).split(max(1, cells // (rows * cols)))
        fine, sums = (torch.cat(each) for each in zip(*map(self._entropy_maps, parts), strict=True))
        return Features(fine.view(*lead, *fine.shape[1:]), sums.view(*lead, *sums.shape[1:]))

    def _entropy_maps(self, beliefs: Tensor) -> Features:
        open_entropy = entropy(beliefs)
        maps = torch.stack((beliefs, open_entropy, beliefs * open_entropy), dim=-3)
        return Features(self.fine(maps), self.sums(maps))

    def removed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares of undecided cells' entropy that readings at positions [..., 3] remove.

        They are factors of rows [..., X], with the sensor's share, and of columns [..., Y].
        """
        place = self.lattice.places(positions)
        return _rows_of(self.tables.rows, place), _rows_of(self.tables.cols, place)

    def outlook(self, positions: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the goal and the gain of each action.

        Args:
            positions: positions of UAVs, [..., 3].
            left: entropy around each lattice position, [..., X, Y].

        Returns:
            Goals, see `destinations`, [..., A, 3]; entropy that a reading there removes, [..., A];
            and entropy around it, halved by every move, weighted to break ties alone, [..., A].
        """
        place = self.lattice.places(positions)
        rows, cols = _rows_of(self._goal_rows, place), _rows_of(self._goal_cols, place)
        gains, around = ((rows @ left) * cols).sum(-1).chunk(2, -1)
        return _rows_of(self._goals, place), gains, PULL * around

    def after(self, positions: Tensor, left: Tensor) -> Tensor:
        """Return the entropy [..., X, Y] that readings at positions [..., 3] leave of `left`."""
        rows, cols = self.removed(positions)
        return left * (1 - rows.unsqueeze(-1) * cols.unsqueeze(-2))

    def destinations(self, positions: Tensor) -> Tensor:
        """Return the goal of each action, [..., A, 3]; beyond the lattice its nearest position."""
        return _rows_of(self._goals, self.lattice.places(positions))

    def move(self, positions: Tensor, actions: Tensor) -> Tensor:
        """Return the goals of actions [...], [..., 3]; see `destinations`."""
        return self._goals[self.lattice.places(positions), actions]


def _rows_of(table: Tensor, place: Tensor) -> Tensor:
    """Return the rows [..., …] of a table [P, …] at places [...]."""
    return table.index_select(0, place.flatten()).view(*place.shape, *table.shape[1:])


def _borders(positions: int, cells_apart: float, cells: int) -> Tensor:
    """Return the edges of the stretches of cells nearest to each position [cells], float64."""
    middles = (torch.arange(1, positions, dtype=torch.float64) - 0.5) * cells_apart
    ends = torch.tensor([0.0, float(cells)], dtype=torch.float64)
    return torch.cat((ends[:1], middles, ends[1:])).clamp(max=float(cells))


def _members(edges: Tensor, cells: int) -> Tensor:
    """Return whether each cell's middle lies in each stretch, [stretches, cells], 0 or 1."""
    cell = torch.arange(cells) + 0.5
    return ((cell >= edges[:-1].unsqueeze(1)) & (cell < edges[1:].unsqueeze(1))).float()
