"""Maps of one size for areas of any size: the whole area, and the lattice around each UAV."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from marl_framework.kernels import maps as kernel
from marl_framework.kernels.cells import area_pool, area_weights, lattice_weights
from marl_framework.observations.channels import CHANNELS, HEARD_POSITIONS, Channel, Extent, Scene
from marl_framework.observations.drawing import centre_on


class Window:
    """Converts maps of the lattice, [..., X, Y], to maps of k × k cells.

    Far maps show the whole area: the lattice lies in the middle of a square of max(X, Y) cells,
    which is averaged onto k × k equal parts. Near maps show the k × k positions around a UAV.

    Args:
        size: number of cells k along each side, odd.
        shape: lattice shape (X, Y).
        device: device of the maps.
    """

    def __init__(self, size: int, shape: tuple[int, int], device: torch.device | str) -> None:
        self._shape, side = (size, size), max(shape)
        rows, cols = (area_weights(cells, size, side).float().to(device) for cells in shape)
        self._far = rows, cols
        self._outside = 1 - rows.sum(1, keepdim=True) * cols.sum(1)
        self._stretched = lattice_weights(shape, self._shape, device)
        self._points = max(1.0, (side / size) ** 2)
        self._tables: dict[tuple[str, ...], tuple[list[Channel], kernel.Shown]] = {}

    def far(self, maps: Tensor, beyond: float = 0.0) -> Tensor:
        """Average maps of the area, [..., X, Y] to [..., k, k]; `beyond` is the value outside."""
        means = area_pool(maps, *self._far)
        return means + beyond * self._outside if beyond else means

    def near(self, maps: Tensor, planar: Tensor, beyond: Sequence[float] = ()) -> Tensor:
        """Return the maps around each UAV, [E, N, C, k, k]; for the arguments see `centre_on`."""
        return centre_on(maps, planar, beyond, self._shape)

    def show(self, scene: Scene, rows: Sequence[Channel]) -> Tensor:
        """Draw channels, [E, N or 1, channels, k, k]; 1 if all channels are shared by all UAVs."""
        sources, drawn = _sources(rows)
        lattice = {row: row.draw(scene) for row in drawn}
        centred = [row for row in rows if _is_near(row)]
        near: dict[Channel, Tensor] = {}
        if centred:
            planar = scene.state.positions[..., :2]
            maps = [lattice[_source(row)].expand(-1, planar.shape[1], -1, -1) for row in centred]
            stack = self.near(torch.stack(maps, 2), planar, [row.beyond for row in centred])
            near = dict(zip(centred, stack.unbind(2), strict=True))
        planes = [
            near[row] if row in near else self._whole(row, lattice.get(source), scene)
            for row, source in zip(rows, sources, strict=True)
        ]
        lead = max(plane.shape[1] for plane in planes)
        return torch.stack([plane.expand(-1, lead, -1, -1) for plane in planes], 2)

    def tables(self, rows: Sequence[Channel]) -> tuple[list[Channel], kernel.Shown]:
        """Return the channels to draw on the lattice, and how to show them with a kernel.

        The kernel does not write channels that have the same value everywhere. Tables are made
        once, in a warm-up call if a CUDA graph is recorded later.
        """
        names = tuple(row.name for row in rows)
        if names not in self._tables:
            sources, drawn = _sources(rows)
            index = [drawn.index(row) if row in drawn else -1 for row in sources]
            ways, numbers = zip(*(self._way(row) for row in rows), strict=True)
            device = self._outside.device
            shown = kernel.Shown(
                torch.tensor(index, device=device),
                torch.tensor(ways, device=device),
                torch.tensor(numbers, device=device),
                torch.stack((self._far[0], self._stretched[0])),
                torch.stack((self._far[1], self._stretched[1])),
                self._outside,
            )
            self._tables[names] = drawn, shown
        return self._tables[names]

    def _way(self, row: Channel) -> tuple[int, tuple[float, float, float]]:
        """Return how a channel is shown, and its numbers; see `kernels.maps.Shown`."""
        if _is_near(row):
            return kernel.NEAR, (1.0, math.inf, row.beyond)
        if row.extent is Extent.FOOTPRINT:
            return kernel.STRETCHED, (1.0, math.inf, 0.0)
        if row.extent is Extent.POINTS:
            return kernel.FAR, (self._points, 1.0, 0.0)
        return kernel.FAR, (1.0, math.inf, row.beyond)

    def _whole(self, row: Channel, maps: Tensor | None, scene: Scene) -> Tensor:
        """Convert the map of a channel that is not centred."""
        if maps is None:
            return row.draw(scene)[..., :1, :1].expand(-1, -1, *self._shape)
        if row.extent is Extent.FOOTPRINT:
            return area_pool(maps, *self._stretched)
        if row.extent is Extent.POINTS:
            return (self.far(maps) * self._points).clamp(max=1)
        return self.far(maps, row.beyond)


def _sources(rows: Sequence[Channel]) -> tuple[list[Channel], list[Channel]]:
    """Return the channel that each row shows, and all that are drawn on the lattice."""
    sources = [_source(row) for row in rows]
    return sources, list(dict.fromkeys(r for r in sources if r.extent is not Extent.VALUE))


def _is_near(row: Channel) -> bool:
    return row.is_centred or row.name == "position"


def _source(row: Channel) -> Channel:
    """Return the channel, drawn on the lattice and not centred, that a channel shows."""
    return HEARD_POSITIONS if row.name == "position" else CHANNELS[row.draw.__name__]
