"""Random box obstacles on the ground, drawn for each mission, and the moves they close."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.seeding import DEPLOYMENT

NUMBERS = 5
"""Number of uniform draws per box."""


class Obstacles:
    """Box obstacles drawn as in `experiment.constraints.obstacles`; finds the moves they close."""

    def __init__(self, config: Config, lattice: Lattice, split: str) -> None:
        settings, area = config.experiment.constraints.obstacles, config.environment
        self.number = 0 if split == DEPLOYMENT else settings.number  # only in simulation
        self._side, self._height = settings.side, settings.height
        self._area = (area.x_dim, area.y_dim)
        self._spacing = lattice.spacing
        device = lattice.offsets.device
        self._steps = lattice.offsets.double() * lattice.spacing
        x, y, _ = (torch.arange(n, dtype=torch.float64, device=device) for n in lattice.shape)
        altitudes = torch.tensor(config.geometry.altitudes, dtype=torch.float64, device=device)
        self._places = (x * lattice.spacing, y * lattice.spacing, altitudes)

    def boxes(self, draws: Tensor, starts: Tensor) -> Tensor:
        """Return boxes (x0, x1, y0, y1, height) [m], [E, K, 5] float64; NaN for omitted boxes.

        A box is omitted if it is within `spacing` of a start position along both axes, so that all
        first moves stay open. `draws` are uniform in [0, 1), [E, K, 5]; `starts` are lattice
        indices, [E, N, 3].
        """
        u = draws.double()
        edges = []
        for axis, length in enumerate(self._area):
            half = _scale(u[..., 2 + axis], *self._side) / 2
            edges += [u[..., axis] * length - half, u[..., axis] * length + half]
        boxes = torch.stack((*edges, _scale(u[..., 4], *self._height)), dim=-1)
        at = starts.double().unsqueeze(1) * self._spacing  # [E, 1, N, 3]
        x0, x1, y0, y1, _ = boxes.unsqueeze(2).unbind(-1)
        near_x = (x0 - self._spacing <= at[..., 0]) & (at[..., 0] <= x1 + self._spacing)
        near_y = (y0 - self._spacing <= at[..., 1]) & (at[..., 1] <= y1 + self._spacing)
        blocks = (near_x & near_y).any(-1)
        return boxes.masked_fill(blocks.unsqueeze(-1), torch.nan)

    def closed(self, boxes: Tensor) -> Tensor:
        """Return whether each move touches a box, [E, X, Y, Z, A] bool.

        Slab method: a move touches a box if the time intervals in which it lies between the box's
        planes, one per axis, overlap. Three intervals overlap if they overlap pairwise.
        """
        x, y, z = (len(places) for places in self._places)
        shape = (len(boxes), x, y, z, len(self._steps))
        closed = torch.zeros(shape, dtype=torch.bool, device=boxes.device)
        for box in boxes.unbind(1):
            x0, x1, y0, y1, height = box.unbind(-1)
            along_x, along_y = self._slab_times(0, x0, x1), self._slab_times(1, y0, y1)
            along_z = self._slab_times(2, torch.zeros_like(height), height)
            closed |= (
                _overlap(along_x, along_y).unsqueeze(3)
                & _overlap(along_x, along_z).unsqueeze(2)
                & _overlap(along_y, along_z).unsqueeze(1)
            )
        return closed

    def _slab_times(self, axis: int, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return when moves enter and leave the slab between two planes [E] across an axis.

        Times are fractions of the move from each position on the axis, [E, P, A]; a move that
        misses the slab leaves before it enters.
        """
        start = self._places[axis].unsqueeze(1)
        step = self._steps[:, axis]
        low, high = low.view(-1, 1, 1), high.view(-1, 1, 1)
        rests = step == 0
        divisor = torch.where(rests, 1.0, step)
        first, second = (low - start) / divisor, (high - start) / divisor
        inside = (low <= start) & (start <= high)
        enter = torch.where(inside, 0.0, torch.inf), torch.minimum(first, second).clamp(min=0)
        leave = torch.where(inside, 1.0, -torch.inf), torch.maximum(first, second).clamp(max=1)
        return torch.where(rests, *enter), torch.where(rests, *leave)


def _scale(share: Tensor, least: float, largest: float) -> Tensor:
    return least + share * (largest - least)


def _overlap(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Return whether intervals [E, P, A] and [E, Q, A] overlap, [E, P, Q, A]; False for NaN."""
    enter = torch.maximum(first[0].unsqueeze(2), second[0].unsqueeze(1))
    return enter <= torch.minimum(first[1].unsqueeze(2), second[1].unsqueeze(1))
