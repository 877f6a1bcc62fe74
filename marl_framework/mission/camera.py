"""The downward camera: lookup tables for its footprints, map windows and readings."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels.cells import area_weights, interval_overlap
from marl_framework.kernels.windows import Footprint, Optics
from marl_framework.mission.sensor import cautious_rates, error_rates, reading_odds, reading_shift

_EPS = 1e-9  # added before a floor, as rounding may leave whole numbers slightly too small


class _Axis(NamedTuple):
    """Tables of one axis, indexed by lattice index and altitude index."""

    extents: Tensor
    """First cell of the clipped footprint, one past its last cell, first cell of the window, and
    first cell of the unclipped footprint, [P, Z, 4] int64."""
    map_weights: Tensor
    """Area weights that average the window's cells onto the lattice, [P, Z, P, K] float32."""
    tile_weights: Tensor
    """Area weights that average the window's cells onto parts of the unclipped footprint,
    [P, Z, P, K] float32."""
    tile_cover: Tensor
    """Share of each part of the unclipped footprint that lies on the map, [P, Z, P] float32."""


def _axis_tables(
    positions: int, spacing: float, resolution: float, cells: int, sides: list[int], window: int
) -> _Axis:
    centre = torch.tensor([math.floor(i * spacing / resolution + _EPS) for i in range(positions)])
    side = torch.tensor(sides)
    top = centre.unsqueeze(1) - side // 2
    first = top.clamp(0, cells - window)
    in_window = first.unsqueeze(-1) + torch.arange(window)  # [P, Z, K]
    map_weights = area_weights(cells, positions)[:, in_window].permute(1, 2, 0, 3)
    # Window cells, counted from the first cell of the unclipped footprint.
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


def flip_thresholds(rates: Tensor) -> Tensor:
    """Return `Optics.flip_below` for miss and false-alarm probabilities, [..., 2]."""
    limits = (rates.flip(-1) * 2**16).round().clamp(0, 2**16 - 1) - 2**15
    return limits.to(torch.int16)


class Camera:
    """Footprints and readings of N UAVs over E maps.

    Attributes:
        shape: number of map cells (R, C).
        window: size of the largest footprint, clipped to the map, (K_x, K_y).
        model_rates: miss and false-alarm probabilities of `sensor.model`, [Z, 2] float32.
        error_rates: the same, as UAVs assume them with `mapping.caution`, [Z, 2] float32.
        adapts: whether UAVs learn how often their cameras err, `sensor.model.adapt`.
        odds, shift: `sensor.reading_odds` and `sensor.reading_shift`, [Z, 2] float32.
        sides: footprint sides (along x, along y) by altitude [cells].
        optics: tables that the kernels read.
        box_table: footprint at each position, as the eight `Footprint` fields, [X, Y, Z, 8] int64.
        cover_tables: share of each footprint part that lies on the map, along x and along y,
            [X, Z, X] and [Y, Z, Y] float32.
    """

    def __init__(self, config: Config, device: torch.device | str) -> None:
        self.shape = config.geometry.map_shape
        self._has_inactive = config.missions.has_inactive
        lattice, sizes = config.geometry.lattice_shape, config.geometry.cell_size
        view, spacing = config.sensor.field_of_view, config.experiment.constraints.spacing
        self.sides = [  # even numbers
            [
                math.floor(2 * altitude * math.tan(math.radians(angle) / 2) / res + _EPS) // 2 * 2
                for altitude in config.geometry.altitudes
            ]
            for angle, res in zip((view.angle_x, view.angle_y), sizes, strict=True)
        ]
        wide, high = (min(max(s), n) for s, n in zip(self.sides, self.shape, strict=True))
        self.window = (wide, high)
        axes = zip(lattice, sizes, self.shape, self.sides, self.window, strict=False)
        self._axes = [
            _Axis(*(table.to(device) for table in _axis_tables(p, spacing, res, n, side, k)))
            for p, res, n, side, k in axes
        ]
        x, y = self._axes
        self.cover_tables = x.tile_cover, y.tile_cover
        rates = error_rates(config)
        self.model_rates = rates.to(device=device, dtype=torch.float32)
        assumed = cautious_rates(rates, config.mapping.caution)
        self.error_rates = assumed.to(device=device, dtype=torch.float32)
        self.adapts = config.sensor.model.adapt
        self.odds = reading_odds(self.error_rates)
        self.shift = reading_shift(self.error_rates)
        prior = config.mapping.prior
        self._prior_odds = prior / (1 - prior)
        self.optics = Optics(
            sides=torch.tensor(self.sides).T.contiguous().to(device),
            flip_below=flip_thresholds(rates).to(device),
            odds=self.odds * ((1 - prior) / prior),
            map_weights=(x.map_weights, y.map_weights),
            tile_weights=(x.tile_weights, y.tile_weights),
        )
        rows = x.extents.unsqueeze(1).expand(-1, lattice[1], -1, -1)
        cols = y.extents.unsqueeze(0).expand(lattice[0], -1, -1, -1)
        # Alternate rows and columns, in the field order of `Footprint`.
        order = torch.tensor((0, 1, 4, 5, 2, 6, 3, 7), device=device)
        self.box_table = torch.cat((rows, cols), -1)[..., order]

    def rates(self, z: Tensor, caution: Tensor) -> Tensor:
        """Return the error rates that UAVs assume at altitude indices z, [..., 2].

        `caution`, see `MissionState.caution`, is broadcastable to z; unused unless `adapts`.
        """
        rates = self.error_rates[z]
        return cautious_rates(rates, caution.unsqueeze(-1)) if self.adapts else rates

    def relative_odds(self, z: Tensor, caution: Tensor) -> Tensor:
        """Return the odds of both readings at these rates, divided by the prior odds, [..., 2]."""
        if not self.adapts:
            return self.optics.odds[z]
        # In float64, so that the result is the same in batches of all sizes.
        odds = self.odds.double()[z] ** caution.double().unsqueeze(-1)
        return (odds / self._prior_odds).float()

    def footprint(self, positions: Tensor) -> Footprint:
        """Return footprints at positions [E, N, 3], as half-open ranges clipped to the map."""
        return Footprint(*self.boxes(positions).unbind(-1))

    def boxes(self, positions: Tensor) -> Tensor:
        """Return footprints at positions [..., 3], as stacked `Footprint` fields, [..., 8]."""
        x, y, z = positions.unbind(-1)
        return self.box_table[x, y, z]

    def team_boxes(self, positions: Tensor, active: Tensor) -> Tensor:
        """Return `boxes` [E, N, 8] with empty footprints for UAVs that are not `active` [E, N].

        An empty footprint has no rows. Its other edges are copied from the first active UAV, so
        that it adds no new edges to the union of footprints.
        """
        boxes = self.boxes(positions)
        if not self._has_inactive:
            return boxes
        first = active.int().argmax(1).view(-1, 1, 1).expand(-1, 1, boxes.shape[-1])
        blind = boxes.gather(1, first)
        blind = torch.cat((blind[..., :1], blind[..., :1], blind[..., 2:]), dim=-1)
        return torch.where(active.unsqueeze(-1), boxes, blind)

    def spans(self, axis: int) -> tuple[Tensor, Tensor]:
        """Return the first footprint cell along an axis and one past the last, [X or Y, Z]."""
        low, high, *_ = self._axes[axis].extents.unbind(-1)
        return low, high

    def window_index(self, footprint: Footprint) -> Tensor:
        """Return the flat map indices of each window's cells: [E, N, K_x·K_y] int64."""
        return footprint.flat_index(self.window, self.shape[1])

    def inside(self, footprint: Footprint, of: Footprint) -> tuple[Tensor, Tensor]:
        """Return which window rows [..., K_x] and columns [..., K_y] lie in the footprints `of`."""
        return footprint.inside(self.window, of)

    def tile_weights(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the area weights that average windows onto X × Y parts of unclipped footprints.

        Row weights are [E, N, X, K_x] and column weights [E, N, Y, K_y].
        """
        return self.optics.of(self.optics.tile_weights, positions)

    def tile_cover(self, positions: Tensor) -> Tensor:
        """Return the share of each unclipped footprint part that lies on the map, [E, N, X, Y]."""
        rows, cols = self.optics.of(self.cover_tables, positions)
        return rows.unsqueeze(-1) * cols.unsqueeze(-2)

    def likelihood(self, readings: Tensor, positions: Tensor) -> Tensor:
        """Return the belief after one reading of cells at 0.5; 0.5 outside the footprint.

        Args:
            readings: 1, -1, or 0 outside the footprint, [E, N, K_x, K_y].
            positions: lattice indices at which the readings were taken, [E, N, 3].

        Returns:
            P(region of interest) [E, N, K_x, K_y].
        """
        up, down = self.shift[positions[..., 2]][..., None, None, :].unbind(-1)
        return 0.5 + readings * torch.where(readings > 0, up, down)
