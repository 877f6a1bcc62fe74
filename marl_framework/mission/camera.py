"""The downward camera: footprints, windows of the map and readings.

Geometry depends on the lattice position alone: it is computed once, in float64 on the host,
and looked up afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.mission.area import area_weights, interval_overlap
from marl_framework.mission.belief import reading_odds, reading_shift
from marl_framework.mission.sensor import error_rates

_EPS = 1e-9  # floors of whole numbers stay right where rounding has made them smaller


class Footprint(NamedTuple):
    """What each UAV sees [cells of the map]; every field is [E, N] int64."""

    row0: Tensor
    """First row on the map (rows run along x)."""
    row1: Tensor
    """One past the last row on the map."""
    col0: Tensor
    col1: Tensor
    window_row: Tensor
    """First row of the K_x × K_y window that holds the footprint and lies on the map."""
    window_col: Tensor
    top: Tensor
    """First row of the unclipped footprint square; may lie outside the map."""
    left: Tensor


@dataclass(frozen=True)
class _Axis:
    """Tables of one axis, looked up by (lattice index, altitude index)."""

    extents: Tensor
    """First cell of the clipped footprint, one past its last, first cell of the window, first
    cell of the unclipped footprint, [P, Z, 4] int64."""
    map_weights: Tensor
    """Area weights of the window's cells on the lattice, [P, Z, P, K] float32."""
    tile_weights: Tensor
    """Area weights of the window's cells in the unclipped footprint, [P, Z, P, K] float32."""
    tile_cover: Tensor
    """Their sums, the shares of the footprint's parts that lie on the map, [P, Z, P] float32."""


def _axis_tables(
    positions: int, spacing: float, resolution: float, cells: int, sides: list[int], window: int
) -> _Axis:
    centre = torch.tensor([math.floor(i * spacing / resolution + _EPS) for i in range(positions)])
    side = torch.tensor(sides)
    top = centre.unsqueeze(1) - side // 2
    first = top.clamp(0, cells - window)
    in_window = first.unsqueeze(-1) + torch.arange(window)  # [P, Z, K]
    map_weights = area_weights(cells, positions)[:, in_window].permute(1, 2, 0, 3)
    # A cell of the unclipped footprint square, in cells of the square itself.
    low = (in_window - top.unsqueeze(-1)).unsqueeze(-2).double()
    width = (side.double() / positions).view(1, -1, 1, 1)
    start = torch.arange(positions).view(1, 1, -1, 1) * width
    tile_weights = interval_overlap(low, low + 1, start, width)
    return _Axis(
        extents=torch.stack((top.clamp(0, cells), (top + side).clamp(0, cells), first, top), -1),
        map_weights=map_weights.float().contiguous(),
        tile_weights=tile_weights.float().contiguous(),
        tile_cover=tile_weights.sum(-1).float(),
    )


class Camera:
    """Footprints and readings of N UAVs over E maps.

    Attributes:
        shape: cells of the map (R, C).
        window: (K_x, K_y), the largest footprint, clipped to the map.
        error_rates: probabilities by altitude to miss a cell of interest, and to read another as
            one, [Z, 2] float32.
        flip_below: [Z, 2] int16; a uniform 16-bit integer lies below the first with the
            probability of a false alarm, below the second with that of a miss.
        odds: see `belief.reading_odds`, [Z, 2] float32.
        shift: see `belief.reading_shift`, [Z, 2] float32.
        sides: footprint sides (along x, along y) by altitude [cells].
        box_table: the fields of all footprints, [X, Y, Z, 8] int64.
        cover_tables: shares of the parts of all footprints that lie on the map, along x and y,
            [X, Z, X] and [Y, Z, Y] float32.
    """

    def __init__(self, config: Config, device: torch.device | str) -> None:
        self.shape = config.geometry.map_shape
        self._has_inactive = config.missions.has_inactive
        lattice = config.geometry.lattice_shape
        view, spacing = config.sensor.field_of_view, config.experiment.constraints.spacing
        angles = (view.angle_x, view.angle_y)
        self.sides = [
            [_side(h, angle, res) for h in config.geometry.altitudes]
            for angle, res in zip(angles, config.geometry.cell_size, strict=True)
        ]
        window = [min(max(s), n) for s, n in zip(self.sides, self.shape, strict=True)]
        self.window = (window[0], window[1])
        axes = [
            _axis_tables(
                lattice[a],
                spacing,
                config.geometry.cell_size[a],
                self.shape[a],
                self.sides[a],
                window[a],
            )
            for a in (0, 1)
        ]
        self._x, self._y = (
            _Axis(**{name: table.to(device) for name, table in vars(axis).items()}) for axis in axes
        )
        self.cover_tables = (self._x.tile_cover, self._y.tile_cover)
        rates = error_rates(config)
        self.error_rates = rates.to(device=device, dtype=torch.float32)
        limits = (rates.flip(-1) * 2**16).round().clamp(max=2**16 - 1) - 2**15
        self.flip_below = limits.to(torch.int16).to(device)
        self.odds = reading_odds(self.error_rates)
        self.shift = reading_shift(self.error_rates)
        rows = self._x.extents.unsqueeze(1).expand(-1, lattice[1], -1, -1)
        cols = self._y.extents.unsqueeze(0).expand(lattice[0], -1, -1, -1)
        # Rows and columns by turns, as in a Footprint.
        order = torch.tensor((0, 1, 4, 5, 2, 6, 3, 7), device=device)
        self.box_table = torch.cat((rows, cols), -1)[..., order]
        self._rows = torch.arange(self.window[0], device=device)
        self._cols = torch.arange(self.window[1], device=device)

    def footprint(self, positions: Tensor) -> Footprint:
        """Return the footprints of positions [E, N, 3], clipped to the map, half-open."""
        return Footprint(*self.boxes(positions).unbind(-1))

    def boxes(self, positions: Tensor) -> Tensor:
        """Return the fields of the footprints of positions [..., 3] side by side, [..., 8]."""
        x, y, z = positions.unbind(-1)
        return self.box_table[x, y, z]

    def team_boxes(self, positions: Tensor, active: Tensor) -> Tensor:
        """Return `boxes` in which UAVs that do not fly see nothing.

        Their footprints have no rows and otherwise the edges of the first UAV that flies, so that
        they neither cut nor bound anything that the others' do not.

        Args:
            positions: [E, N, 3].
            active: [E, N] bool.
        """
        boxes = self.boxes(positions)
        if not self._has_inactive:
            return boxes
        first = active.int().argmax(1).view(-1, 1, 1).expand(-1, 1, boxes.shape[-1])
        blind = boxes.gather(1, first)
        blind = torch.cat((blind[..., :1], blind[..., :1], blind[..., 2:]), dim=-1)
        return torch.where(active.unsqueeze(-1), boxes, blind)

    def spans(self, axis: int) -> tuple[Tensor, Tensor]:
        """Return what footprints cover along x (axis 0) or y (axis 1), clipped to the map.

        First cell and one past the last by (lattice index, altitude index): [X or Y, Z] int64.
        """
        low, high, *_ = (self._x, self._y)[axis].extents.unbind(-1)
        return low, high

    def window_index(self, footprint: Footprint) -> Tensor:
        """Return the flat map indices of each window's cells: [E, N, K_x·K_y] int64."""
        rows = footprint.window_row.unsqueeze(-1) + self._rows
        cols = footprint.window_col.unsqueeze(-1) + self._cols
        return (rows.unsqueeze(-1) * self.shape[1] + cols.unsqueeze(-2)).flatten(-2)

    def inside(self, footprint: Footprint, of: Footprint) -> tuple[Tensor, Tensor]:
        """Return which window rows [..., K_x] and columns [..., K_y] lie in footprints `of`.

        `footprint` gives the windows; both broadcast against each other.
        """
        rows = footprint.window_row.unsqueeze(-1) + self._rows
        cols = footprint.window_col.unsqueeze(-1) + self._cols
        return (
            (rows >= of.row0.unsqueeze(-1)) & (rows < of.row1.unsqueeze(-1)),
            (cols >= of.col0.unsqueeze(-1)) & (cols < of.col1.unsqueeze(-1)),
        )

    def map_weights(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return area weights [E, N, X, K_x], [E, N, Y, K_y] of windows onto the lattice."""
        x, y, z = positions.unbind(-1)
        return self._x.map_weights[x, z], self._y.map_weights[y, z]

    def tile_weights(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return area weights of windows onto X × Y parts of the unclipped footprint square.

        Args:
            positions: lattice indices, [E, N, 3].

        Returns:
            Of rows [E, N, X, K_x] and of columns [E, N, Y, K_y]: the share of each part in each
            row or column of the window.
        """
        x, y, z = positions.unbind(-1)
        return self._x.tile_weights[x, z], self._y.tile_weights[y, z]

    def tile_cover(self, positions: Tensor) -> Tensor:
        """Return the shares of these parts that lie on the map, [E, N, X, Y]."""
        x, y, z = positions.unbind(-1)
        return self._x.tile_cover[x, z].unsqueeze(-1) * self._y.tile_cover[y, z].unsqueeze(-2)

    def measure(self, truth: Tensor, positions: Tensor, bits: Tensor) -> Tensor:
        """Read the cells under each UAV, wrongly at the rates of the sensor.

        Args:
            truth: [E, R, C] bool.
            positions: [E, N, 3] lattice indices.
            bits: [E, N, K_x, K_y] int16, uniform over all 16-bit integers.

        Returns:
            Readings [E, N, K_x, K_y] int8: +1, -1, and 0 outside the footprint.
        """
        footprint = self.footprint(positions)
        index = self.window_index(footprint)
        below = truth.flatten(1).gather(1, index.flatten(1)).view_as(bits)
        limits = self.flip_below[positions[..., 2]].unsqueeze(-2).unsqueeze(-2)
        false_alarm, miss = limits.unbind(-1)
        rows, cols = self.inside(footprint, footprint)
        sign = torch.where(below, bits >= miss, bits < false_alarm).to(torch.int8) * 2 - 1
        return sign * rows.unsqueeze(-1) * cols.unsqueeze(-2)

    def likelihood(self, readings: Tensor, positions: Tensor) -> Tensor:
        """Return the belief after each reading alone, from 0.5; 0.5 outside the footprint.

        Args:
            readings: 1, -1, or 0 outside the footprint, [E, N, K_x, K_y].
            positions: where they were taken, lattice indices [E, N, 3].

        Returns:
            P(region of interest) [E, N, K_x, K_y]: the likelihood of the reading there, scaled so
            that both possibilities sum to 1.
        """
        shift = self.shift[positions[..., 2]].unsqueeze(-2).unsqueeze(-2)
        up, down = shift.unbind(-1)
        return 0.5 + readings * torch.where(readings > 0, up, down)


def _side(altitude: float, angle: float, resolution: float) -> int:
    """Return the side of a footprint [cells], an even number."""
    seen = math.floor(2 * altitude * math.tan(math.radians(angle) / 2) / resolution + _EPS)
    return 2 * (seen // 2)
