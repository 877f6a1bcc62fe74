"""Maps on the lattice: what lies around each position, and what a reading there would remove."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.mission.accuracy import GPU_CELLS
from marl_framework.mission.area import interval_overlap
from marl_framework.mission.belief import entropy, entropy_left
from marl_framework.mission.camera import Camera
from marl_framework.mission.fusion import TritonFusion, fusion_type
from marl_framework.mission.kernels.cpu import WindowLoops, part_sums
from marl_framework.mission.lattice import Lattice

PULL = 1e-3  # weight of what lies around a path's end

PartSums = Callable[[Tensor, Tensor, Tensor], Tensor]
"""See `mission.kernels.cpu.part_sums`."""


class LatticeView:
    """Sees maps and readings as the lattice does, so that a search never copies a whole map.

    A cell belongs to the lattice position nearest to it. Footprints of readings are known by the
    share of each position's cells that they cover.

    Args:
        config: the missions.
        lattice: tells which actions are allowed, and where they lead.
        parts: stretches that `fine` divides each position's cells into, along both axes.

    Attributes:
        lattice: as given.
        moves: of the longest mission.
        has_inactive: whether some UAVs do not fly all the time.
        compiles: whether compiled loops are used.
        tables: what each of the P positions means: the positions that its actions lead to, [P, A];
            the factors of what a reading there removes, [P, X] and [P, Y], see `removed`; and
            weights of what lies around, [P, X] and [P, Y].
    """

    def __init__(self, config: Config, lattice: Lattice, parts: int = 1) -> None:
        self.lattice = lattice
        self.moves = config.missions.episode_length
        self.has_inactive = config.missions.has_inactive
        device = lattice.offsets.device
        on_cpu = device.type == "cpu"
        self.compiles = config.compute.compile and on_cpu and WindowLoops.available()
        self._part_sums = part_sums if self.compiles else _triton_part_sums(config, device)
        camera = Camera(config, "cpu")
        spacing = config.experiment.constraints.spacing
        cells: list[Tensor] = []
        fine: list[Tensor] = []
        shares: list[Tensor] = []
        numbers: list[Tensor] = []
        for axis in (0, 1):
            edges = _borders(
                lattice.shape[axis], spacing / config.geometry.cell_size[axis], camera.shape[axis]
            )
            low, high = (bound.double().unsqueeze(-1) for bound in camera.spans(axis))
            width = (edges[1:] - edges[:-1]).clamp(min=1e-9)
            shares.append(interval_overlap(low, high, edges[:-1], width).float().to(device))
            cells.append(_members(edges, camera.shape[axis]).to(device))
            members = _members(_divided(edges, parts), camera.shape[axis])
            numbers.append(members.sum(1).to(device))
            fine.append((members / members.sum(1, keepdim=True).clamp(min=1)).to(device))
        self._cells, self._fine = cells, fine
        self._part_ends = [each.cumsum(0).long() for each in numbers]
        self._part_cells = numbers[0].unsqueeze(1) * numbers[1]
        self._shape = camera.shape
        self._unit = lattice.shape[0] * lattice.shape[1] / (camera.shape[0] * camera.shape[1])
        self._tabulate(shares, 1 - entropy_left(camera.error_rates).to(device))

    def _tabulate(self, shares: list[Tensor], removed: Tensor) -> None:
        """Write down what every position and its actions mean, one row for each position.

        Args:
            shares: of each position's rows and columns that footprints at all positions of the
                axis and all altitudes cover.
            removed: share of undecided cells' entropy that a reading removes at each altitude.
        """
        shape, device = self.lattice.shape, removed.device
        near = [_nearness(n, device) for n in shape[:2]]
        along = [torch.arange(n, device=device) for n in shape]
        places = torch.cartesian_prod(*along)
        x, y, z = places.unbind(-1)
        self._goals = self.lattice.nearest_destinations(places)  # [P, A, 3]
        goals = self.lattice.places(self._goals)
        rows = shares[0][x, z] * removed[z].unsqueeze(-1)
        self.tables = goals, rows, shares[1][y, z], near[0][x], near[1][y]
        _, rows, cols, *around = self.tables
        self._goal_rows = torch.cat((rows[goals], around[0][goals]), 1)  # [P, 2·A, X]
        self._goal_cols = torch.cat((cols[goals], around[1][goals]), 1)

    def sums(self, maps: Tensor) -> Tensor:
        """Return sums over each position's cells, [..., X, Y] of [..., R, C].

        1 is the number of cells of an average position.
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

    def entropy_maps(self, beliefs: Tensor) -> tuple[Tensor, Tensor]:
        """Return `fine` and `sums` of p, H(p) and p·H(p), of beliefs p [..., R, C].

        They have a dimension of 3 before those of the map.
        """
        if self._part_sums is not None:
            parts = self._part_sums(beliefs, *self._part_ends)
            fine = parts / self._part_cells.clamp(min=1)
            x, y = self.lattice.shape[:2]
            sums = parts.unflatten(-1, (y, -1)).unflatten(-3, (x, -1)).sum((-3, -1))
            return fine, sums * self._unit
        if beliefs.device.type == "cuda":  # where thousands of missions see predictions at once
            return self._in_parts(beliefs, GPU_CELLS)
        return self._entropy_maps(beliefs)

    def _in_parts(self, beliefs: Tensor, cells: int) -> tuple[Tensor, Tensor]:
        """Return the same, made of as many maps at once as have this number of cells."""
        *lead, rows, cols = beliefs.shape
        parts = beliefs.reshape(-1, rows, cols).split(max(1, cells // (rows * cols)))
        fine, sums = (torch.cat(each) for each in zip(*map(self._entropy_maps, parts), strict=True))
        return fine.view(*lead, *fine.shape[1:]), sums.view(*lead, *sums.shape[1:])

    def _entropy_maps(self, beliefs: Tensor) -> tuple[Tensor, Tensor]:
        open_entropy = entropy(beliefs)
        maps = torch.stack((beliefs, open_entropy, beliefs * open_entropy), dim=-3)
        return self.fine(maps), self.sums(maps)

    def removed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares of undecided cells' entropy that readings remove.

        As factors of rows [..., X] and columns [..., Y] for positions [..., 3]; what the sensor
        tells at its altitude is in the rows.
        """
        place = self.lattice.places(positions)
        return _rows_of(self.tables[1], place), _rows_of(self.tables[2], place)

    def outlook(self, positions: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each action would bring.

        Args:
            positions: of UAVs, [..., 3].
            left: entropy around each lattice position, [..., X, Y].

        Returns:
            Where it leads, [..., A, 3], beyond the lattice its nearest position; the entropy that a
            reading there would remove, [..., A]; and what lies around, weighed to break ties of
            gains alone, [..., A]: a sum over all positions, halved by every move between them.
        """
        place = self.lattice.places(positions)
        rows, cols = _rows_of(self._goal_rows, place), _rows_of(self._goal_cols, place)
        gains, around = ((rows @ left) * cols).sum(-1).chunk(2, -1)
        return _rows_of(self._goals, place), gains, PULL * around

    def after(self, positions: Tensor, left: Tensor) -> Tensor:
        """Return what readings at positions [..., 3] leave of `left` [..., X, Y]."""
        rows, cols = self.removed(positions)
        return left * (1 - rows.unsqueeze(-1) * cols.unsqueeze(-2))

    def destinations(self, positions: Tensor) -> Tensor:
        """Return where each action leads, [..., A, 3]; beyond the lattice its nearest position."""
        return _rows_of(self._goals, self.lattice.places(positions))

    def move(self, positions: Tensor, actions: Tensor) -> Tensor:
        """Return where actions [...] lead, [..., 3]; beyond the lattice its nearest position."""
        return self._goals[self.lattice.places(positions), actions]


def _triton_part_sums(config: Config, device: torch.device) -> PartSums | None:
    """Return `part_sums` for a GPU with Triton, else None."""
    if fusion_type(config, device) is not TritonFusion:
        return None
    # Triton takes a while to import, and many machines do without it.
    from marl_framework.mission.kernels import part_operators

    def sums(beliefs: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
        maps = beliefs.flatten(0, -3).contiguous()
        return part_operators.sum_parts(maps, row_ends, col_ends).unflatten(0, beliefs.shape[:-2])

    return sums


def _rows_of(table: Tensor, place: Tensor) -> Tensor:
    """Return the rows [..., …] of a table [P, …] at places [...]."""
    return table.index_select(0, place.flatten()).view(*place.shape, *table.shape[1:])


def _borders(positions: int, cells_apart: float, cells: int) -> Tensor:
    """Return the edges of the stretches of an axis nearest to each position [cells], float64."""
    middles = (torch.arange(1, positions, dtype=torch.float64) - 0.5) * cells_apart
    ends = torch.tensor([0.0, float(cells)], dtype=torch.float64)
    return torch.cat((ends[:1], middles, ends[1:])).clamp(max=float(cells))


def _divided(edges: Tensor, parts: int) -> Tensor:
    """Return the edges with every stretch between them divided evenly."""
    steps = torch.arange(parts, dtype=edges.dtype) / parts
    inner = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * steps
    return torch.cat((inner.flatten(), edges[-1:]))


def _members(edges: Tensor, cells: int) -> Tensor:
    """Return which cells have their middle in which stretch, [stretches, cells] 0 or 1."""
    cell = torch.arange(cells) + 0.5
    return ((cell >= edges[:-1].unsqueeze(1)) & (cell < edges[1:].unsqueeze(1))).float()


def _nearness(positions: int, device: torch.device) -> Tensor:
    """Return weights [P, P] that halve with every move between two positions of an axis."""
    index = torch.arange(positions, device=device)
    return torch.exp(-math.log(2) * (index.unsqueeze(1) - index).abs())
