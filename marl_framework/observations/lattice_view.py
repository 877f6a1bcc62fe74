"""Lattice maps: entropy around each position, and the share of it that a reading removes."""

from __future__ import annotations

import copy
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
from marl_framework.mission.sensor import cautious_rates, entropy_left

TIE_WEIGHT = 1e-3
"""Weight of the entropy around a goal, which only breaks ties."""


class Features(NamedTuple):
    """Belief p, its entropy H(p) and p·H(p), on the lattice."""

    fine: Tensor
    """Means over the subdivisions of each lattice cell, [..., 3, parts·X, parts·Y]."""
    coarse: Tensor
    """Sums over each lattice cell, [..., 3, X, Y], divided by the mean number of map cells."""


class LatticeView:
    """Projects maps and readings onto the lattice; a cell belongs to the nearest position.

    Args:
        config: configuration of the missions.
        lattice: lattice of the missions.
        parts: number of subdivisions per axis of a lattice cell in `fine`.

    Attributes:
        moves: number of moves of the longest mission.
        has_inactive: whether some UAVs may be inactive.
        adapts: whether UAVs learn how often their cameras err.
        reach: number of positions away from a UAV at which its reading can remove entropy, at most.
        compute: settings of the device.
        version: kernel backend (plain, loops or Triton).
        tables: lookup tables of goals and entropy reduction, one row per lattice position (P).
    """

    def __init__(self, config: Config, lattice: Lattice, parts: int = 1) -> None:
        self.lattice = lattice
        self.moves = config.missions.episode_length
        self.has_inactive = config.missions.has_inactive
        device = lattice.offsets.device
        self.compute = config.compute
        self.version = version_for(config.compute, device)
        camera = Camera(config, "cpu")
        spacing, self._shape = config.experiment.constraints.spacing, camera.shape
        sides = zip(camera.sides, config.geometry.cell_size, strict=True)
        self.reach = max(math.ceil(max(side) * size / 2 / spacing) for side, size in sides) + 1
        self._cells, self._fine, shares, numbers = [], [], [], []
        for axis, size in enumerate(camera.shape):
            edges = _boundaries(
                lattice.shape[axis], spacing / config.geometry.cell_size[axis], size
            )
            low, high = (bound.double().unsqueeze(-1) for bound in camera.spans(axis))
            width = (edges[1:] - edges[:-1]).clamp(min=1e-9)
            shares.append(interval_overlap(low, high, edges[:-1], width).float().to(device))
            self._cells.append(_members(edges, size).to(device))
            fractions = torch.arange(parts, dtype=edges.dtype) / parts
            inner = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * fractions
            members = _members(torch.cat((inner.flatten(), edges[-1:])), size)
            numbers.append(members.sum(1).to(device))
            means = members / members.sum(1, keepdim=True).clamp(min=1)
            self._fine.append(means.to(device))
        self._part_ends = [each.cumsum(0).long() for each in numbers]
        self._part_cells = numbers[0].unsqueeze(1) * numbers[1]
        self._unit = lattice.shape[0] * lattice.shape[1] / (camera.shape[0] * camera.shape[1])
        self.adapts = camera.adapts
        self._rates = camera.error_rates.to(device)
        self._build_tables(shares)

    def _build_tables(self, shares: list[Tensor]) -> None:
        """Build the tables from footprint coverage and the sensor's entropy reduction."""
        shape, device = self.lattice.shape, self._rates.device
        along = [torch.arange(n, device=device) for n in shape]
        distances = [(index.unsqueeze(1) - index).abs() for index in along[:2]]
        near = [torch.exp(-math.log(2) * moves) for moves in distances]  # ½ per move
        places = torch.cartesian_prod(*along)
        x, y, z = places.unbind(-1)
        goals = self.lattice.places(self.lattice.nearest_destinations(places))
        reduction = 1 - entropy_left(self._rates)
        # Factors along each axis, of readings and of the entropy around positions, [P, Z, P].
        self._axes = [
            (share, weights.unsqueeze(1).expand_as(share))
            for share, weights in zip(shares, near, strict=True)
        ]
        rows, cols = (shares[0] * reduction.unsqueeze(-1))[x, z], shares[1][y, z]
        self.tables = Tables(goals, rows, cols, near[0][x], near[1][y])
        self._build_goal_tables()

    def _build_goal_tables(self) -> None:
        """Build the tables of plain operators, by action; loops do not read them."""
        if self.version is Version.LOOPS:
            return
        goals, rows, cols, near_rows, near_cols = self.tables
        self._goal_rows = torch.cat((rows[goals], near_rows[goals]), 1)  # [P, 2·A, X]
        self._goal_cols = torch.cat((cols[goals], near_cols[goals]), 1)

    def windows(self, x: Tensor, y: Tensor, sides: tuple[int, int], caution: Tensor) -> LatticeView:
        """Return the view of one window of the lattice for each of E missions, for searches.

        Window e begins at position (x[e], y[e]) and has U × V positions, `sides`. Position (u, v)
        of it is (e·U + u, v) of the view, whose maps are [E, …, U, V]. `caution`: that of the UAVs,
        [E, 1]; unused unless `adapts`.
        """
        part, (across, along), levels = copy.copy(self), sides, self.lattice.shape[2]
        part.lattice = copy.copy(self.lattice)
        part.lattice.shape = (len(x) * across, along, levels)
        size, mission = (len(x), across, along, levels), torch.arange(len(x), device=x.device)
        lattice = torch.tensor(self.lattice.shape, device=x.device)
        first = torch.stack((x, y, torch.zeros_like(x)), -1)
        local = torch.cartesian_prod(*(torch.arange(n, device=x.device) for n in size[1:]))
        goals = first.view(-1, 1, 1, 3) + self.lattice.destinations(local)
        goals = goals.clamp(min=0).minimum(lattice - 1) - first.view(-1, 1, 1, 3)
        goals = goals.clamp(min=0).minimum(torch.tensor(size[1:], device=x.device) - 1)
        goals[..., 0] += across * mission.view(-1, 1, 1)
        tables = []
        for axis, (start, side) in enumerate(((x, across), (y, along))):
            at = start.unsqueeze(1) + torch.arange(side, device=x.device)  # [E, side]
            for table in self._axes[axis]:  # [P, Z, P]
                window = table[at.unsqueeze(2), :, at.unsqueeze(1)].movedim(-1, 2)
                window = window.unsqueeze(2 - axis).expand(*size, side)
                tables.append(window)
        rates = self._rates
        if self.adapts:
            rates = cautious_rates(rates, caution.unsqueeze(-1))
        reduction = (1 - entropy_left(rates)).view(-1, 1, 1, levels, 1)
        tables[0] = tables[0] * reduction
        rows, near_rows, cols, near_cols = (table.flatten(0, 3) for table in tables)
        goals = part.lattice.places(goals.flatten(0, 1))
        part.tables = Tables(goals, rows, cols, near_rows, near_cols)
        part._build_goal_tables()
        return part

    def sums(self, maps: Tensor) -> Tensor:
        """Sum maps [..., R, C] over each position's cells; return [..., X, Y].

        Sums are divided by the mean number of map cells per lattice position.
        """
        return self._cells[0] @ maps @ self._cells[1].mT * self._unit

    def count_cells(self) -> Tensor:
        """Return the number of map cells per position, [X, Y], normalised as in `sums`."""
        return self.sums(torch.ones((), device=self._cells[0].device).expand(self._shape))

    def spread(self, sums: Tensor) -> Tensor:
        """Distribute sums [..., X, Y] evenly over each position's cells; return [..., R, C]."""
        return self._cells[0].mT @ (sums / self.count_cells().clamp(min=1e-9)) @ self._cells[1]

    def fine(self, maps: Tensor) -> Tensor:
        """Average maps over the subdivisions of each position; return [..., parts·X, parts·Y]."""
        return self._fine[0] @ maps @ self._fine[1].mT

    def entropy_maps(self, beliefs: Tensor) -> Features:
        """Compute the features of beliefs [..., R, C]."""
        if self.version is not Version.PLAIN:
            parts = part_sums(self.version, beliefs, *self._part_ends)
            fine = parts / self._part_cells.clamp(min=1)
            x, y = self.lattice.shape[:2]
            sums = parts.unflatten(-1, (y, -1)).unflatten(-3, (x, -1)).sum((-3, -1))
            return Features(fine, sums * self._unit)
        if beliefs.device.type == "cuda":  # thousands of missions may not fit GPU memory
            return self.entropy_maps_in_chunks(beliefs, GPU_CELLS)
        return self._entropy_maps(beliefs)

    def entropy_maps_in_chunks(self, beliefs: Tensor, cells: int) -> Features:
        """Compute `entropy_maps` with plain operators, in chunks of at most `cells` map cells."""
        *lead, rows, cols = beliefs.shape
        chunks = beliefs.reshape(-1, rows, cols).split(max(1, cells // (rows * cols)))
        features = zip(*map(self._entropy_maps, chunks), strict=True)
        fine, sums = (torch.cat(maps) for maps in features)
        return Features(fine.view(*lead, *fine.shape[1:]), sums.view(*lead, *sums.shape[1:]))

    def _entropy_maps(self, beliefs: Tensor) -> Features:
        cell_entropy = entropy(beliefs)
        maps = torch.stack((beliefs, cell_entropy, beliefs * cell_entropy), dim=-3)
        return Features(self.fine(maps), self.sums(maps))

    def score_actions(self, places: Tensor, remaining: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gain of each action, and its tie-breaker.

        Args:
            places: flat positions of UAVs, see `Lattice.places`, [...].
            remaining: remaining entropy around each lattice position, [..., X, Y].

        Returns:
            Entropy that a reading at the action's goal removes, [..., A]; tie-breaker, [..., A]:
            entropy around the goal, discounted by ½ per move, times `TIE_WEIGHT`.
        """
        rows, cols = _rows_of(self._goal_rows, places), _rows_of(self._goal_cols, places)
        gains, around = ((rows @ remaining) * cols).sum(-1).chunk(2, -1)
        return gains, TIE_WEIGHT * around

    def apply_readings(self, places: Tensor, remaining: Tensor) -> Tensor:
        """Return the remaining entropy [..., X, Y] after readings at flat positions [...]."""
        rows, cols = _rows_of(self.tables.rows, places), _rows_of(self.tables.cols, places)
        return remaining * (1 - rows.unsqueeze(-1) * cols.unsqueeze(-2))


def _rows_of(table: Tensor, place: Tensor) -> Tensor:
    """Return the rows [..., …] of a table [P, …] at indices [...]."""
    return table.index_select(0, place.flatten()).view(*place.shape, *table.shape[1:])


def _boundaries(positions: int, cells_apart: float, cells: int) -> Tensor:
    """Return the boundaries [cells] of the interval nearest to each position, float64."""
    middles = (torch.arange(1, positions, dtype=torch.float64) - 0.5) * cells_apart
    ends = torch.tensor([0.0, float(cells)], dtype=torch.float64)
    return torch.cat((ends[:1], middles, ends[1:])).clamp(max=float(cells))


def _members(edges: Tensor, cells: int) -> Tensor:
    """Return the membership matrix [intervals, cells] of cells in intervals, 0 or 1."""
    cell = torch.arange(cells) + 0.5
    return ((cell >= edges[:-1].unsqueeze(1)) & (cell < edges[1:].unsqueeze(1))).float()
