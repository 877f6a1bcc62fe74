"""Maps on the planning lattice, [..., X, Y], for E missions and N UAVs: values and footprints."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from kornia.geometry.transform import remap
from torch import Tensor

from marl_framework.kernels.cells import area_pool, covered, grid_coordinates
from marl_framework.kernels.windows import Footprint

UNSEEN = 0.5
"""Value of footprint maps outside all footprints."""


def constant(values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return constant maps [..., X, Y] with the given values [...]."""
    return values.unsqueeze(-1).unsqueeze(-1).expand(*values.shape, *shape)


def paint(
    cells: Tensor, values: Tensor, order: Tensor, background: float, shape: tuple[int, int]
) -> Tensor:
    """Draw one value per UAV into its cell; return maps [E, M, X, Y].

    Args:
        cells: flat lattice cell of each UAV, [E, N].
        values: value of each UAV, [E, N].
        order: rank in which UAV j is drawn on map i, the highest on top, [E, M, N]; -1 = hidden.
        background: value of all other cells.
        shape: lattice shape, (X, Y).
    """
    same = (cells.unsqueeze(2) == cells.unsqueeze(1)).unsqueeze(1)  # [E, 1, N, N]
    overwritten = (same & (order.unsqueeze(2) > order.unsqueeze(3))).any(-1)  # by a higher rank
    visible = ((order >= 0) & ~overwritten).to(values.dtype)
    at = torch.arange(shape[0] * shape[1], device=cells.device)
    where = (cells.unsqueeze(-1) == at).to(values.dtype)  # [E, N, X·Y]
    # At most one value is visible in a cell, so these sums select it exactly.
    painted = (visible * values.unsqueeze(1)) @ where
    touched = visible @ where
    return torch.where(touched > 0, painted, background).unflatten(2, shape)


def centre_on(
    maps: Tensor, planar: Tensor, beyond: Sequence[float] = (), shape: tuple[int, int] | None = None
) -> Tensor:
    """Shift maps [E, N, C, X, Y] so that each UAV's own cell is at the centre.

    Args:
        maps: maps of each UAV.
        planar: lattice indices (x, y), [E, N, 2].
        beyond: value of each channel outside the lattice; default 0.
        shape: shape (P, Q) of the results, whose centre is (P//2, Q//2); None for (X, Y).

    Returns:
        Shifted maps, [E, N, C, P, Q].
    """
    x, y = maps.shape[-2:]
    p, q = shape or (x, y)
    at = planar.flatten(0, 1)
    rows = torch.arange(p, device=maps.device) - p // 2 + at[:, :1]
    cols = torch.arange(q, device=maps.device) - q // 2 + at[:, 1:]
    shifted = remap(
        maps.flatten(0, 1),
        map_x=grid_coordinates(cols.to(maps.dtype), y).unsqueeze(1).expand(-1, p, -1),
        map_y=grid_coordinates(rows.to(maps.dtype), x).unsqueeze(2).expand(-1, -1, q),
        mode="nearest",
        padding_mode="zeros",
        align_corners=True,
        normalized_coordinates=True,
    )
    centred = shifted.unflatten(0, maps.shape[:2])
    for channel, value in enumerate(beyond):
        if value:
            outside = ((rows < 0) | (rows >= x)).unsqueeze(2) | (
                (cols < 0) | (cols >= y)
            ).unsqueeze(1)
            plane = centred[:, :, channel]
            plane.masked_fill_(outside.view_as(plane), value)
    return centred


class FootprintStrips:
    """Footprints of a team on the grid that their edges form.

    N rectangles split each axis into at most 2N + 1 strips. On this grid, unions of footprints are
    exact; overlaps of strips and lattice cells give area means.

    Footprints are [E, N], the map is (R, C), the lattice (X, Y).
    """

    def __init__(
        self, footprint: Footprint, map_shape: tuple[int, int], shape: tuple[int, int]
    ) -> None:
        row0, row1, col0, col1, *_ = footprint
        self._in_rows, self._row_shares = _cut_strips(row0, row1, map_shape[0], shape[0])
        self._in_cols, self._col_shares = _cut_strips(col0, col1, map_shape[1], shape[1])

    def heard_map(self, heard: Tensor, own: Tensor | None = None) -> Tensor:
        """Return area means [E, M, X, Y] of maps that show the own and heard footprints of M UAVs.

        Values are 1 in the own footprint, 0 in heard ones, else 0.5. `heard` is [E, M, N] bool, and
        `own` the index of each UAV, [E, M] int64; None for all N.
        """
        rows, cols = self._in_rows, self._in_cols
        if own is not None:
            rows, cols = (strips.take_along_dim(own.unsqueeze(2), 1) for strips in (rows, cols))
        seen = rows.unsqueeze(-1) * cols.unsqueeze(-2)
        rows = heard.unsqueeze(-1) * self._in_rows.unsqueeze(1)  # [E, N, N, S]
        number = rows.mT @ self._in_cols.unsqueeze(1)  # of heard footprints
        values = number.clamp_(max=1).mul_(-UNSEEN).add_(UNSEEN).maximum(seen)
        return area_pool(values, self._row_shares.unsqueeze(1), self._col_shares.unsqueeze(1))

    def global_map(self) -> Tensor:
        """Return area means [E, X, Y] of maps that are 1 in any footprint, else 0.5."""
        union = self._in_rows.mT @ self._in_cols
        values = torch.where(union > 0, 1.0, UNSEEN)
        return area_pool(values, self._row_shares, self._col_shares)


def _cut_strips(low: Tensor, high: Tensor, cells: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Cut one axis into strips at all footprint edges.

    Return whether footprints cover strips [E, N, S] and area weights [E, outputs, S], float32.
    """
    border = torch.zeros_like(low[:, :1])
    edges = torch.cat((border, low, high, border + cells), dim=1).sort(dim=1).values
    start, end = edges[:, :-1], edges[:, 1:]
    covers = (start.unsqueeze(1) >= low.unsqueeze(2)) & (end.unsqueeze(1) <= high.unsqueeze(2))
    return covers.to(torch.float32), covered(start, end, cells, outputs)
