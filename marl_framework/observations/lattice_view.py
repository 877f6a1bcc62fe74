"""Maps on the lattice: what lies around each position, and what a reading there would remove."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.mission.area import interval_overlap
from marl_framework.mission.belief import entropy_left
from marl_framework.mission.camera import Camera
from marl_framework.mission.lattice import Lattice

_PULL = 1e-3  # weight of what lies around a path's end


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
    """

    def __init__(self, config: Config, lattice: Lattice, parts: int = 1) -> None:
        self.lattice = lattice
        self.moves = config.episode_length
        self.has_inactive = config.has_inactive
        device = lattice.offsets.device
        camera = Camera(config, "cpu")
        spacing = config.experiment.constraints.spacing
        cells: list[Tensor] = []
        fine: list[Tensor] = []
        shares: list[Tensor] = []
        for axis in (0, 1):
            edges = _borders(
                lattice.shape[axis], spacing / config.cell_size[axis], camera.shape[axis]
            )
            low, high = (bound.double().unsqueeze(-1) for bound in camera.spans(axis))
            width = (edges[1:] - edges[:-1]).clamp(min=1e-9)
            shares.append(interval_overlap(low, high, edges[:-1], width).float().to(device))
            cells.append(_members(edges, camera.shape[axis]).to(device))
            members = _members(_divided(edges, parts), camera.shape[axis])
            fine.append((members / members.sum(1, keepdim=True).clamp(min=1)).to(device))
        self._cells, self._fine, self._shares = cells, fine, shares
        self._shape = camera.shape
        self._unit = lattice.shape[0] * lattice.shape[1] / (camera.shape[0] * camera.shape[1])
        self._removed = 1 - entropy_left(camera.error_rates).to(device)
        self._near = [_nearness(n, device) for n in lattice.shape[:2]]
        along = [torch.arange(n, device=device) for n in lattice.shape]
        places = torch.cartesian_prod(*along).view(*lattice.shape, 3)
        last = torch.tensor(lattice.shape, device=device) - 1
        self._goals = lattice.destinations(places).clamp(min=0).minimum(last)

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

    def removed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares of undecided cells' entropy that readings remove.

        As factors of rows [..., X] and columns [..., Y] for positions [..., 3]; what the sensor
        tells at its altitude is in the rows.
        """
        x, y, z = positions.unbind(-1)
        rows = self._shares[0][x, z] * self._removed[z].unsqueeze(-1)
        return rows, self._shares[1][y, z]

    def gains(self, positions: Tensor, left: Tensor) -> Tensor:
        """Return the entropy that readings would remove, [..., A].

        Args:
            positions: of the readings, [..., A, 3].
            left: entropy around each lattice position, [..., X, Y].
        """
        rows, cols = self.removed(positions)
        return ((rows @ left) * cols).sum(-1)

    def after(self, positions: Tensor, left: Tensor) -> Tensor:
        """Return what readings at positions [..., 3] leave of `left` [..., X, Y]."""
        rows, cols = self.removed(positions)
        return left * (1 - rows.unsqueeze(-1) * cols.unsqueeze(-2))

    def pull(self, positions: Tensor, left: Tensor) -> Tensor:
        """Return what lies around positions [..., A, 3], weighed to break ties of gains alone.

        That is a sum over all positions, which counts half with every move between them.
        """
        rows, cols = (near[positions[..., axis]] for axis, near in enumerate(self._near))
        return _PULL * ((rows @ left) * cols).sum(-1)

    def destinations(self, positions: Tensor) -> Tensor:
        """Return where each action leads, [..., A, 3]; beyond the lattice its nearest position."""
        x, y, z = positions.unbind(-1)
        return self._goals[x, y, z]

    def move(self, positions: Tensor, actions: Tensor) -> Tensor:
        """Return where actions [...] lead, [..., 3]; beyond the lattice its nearest position."""
        x, y, z = positions.unbind(-1)
        return self._goals[x, y, z, actions]


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
