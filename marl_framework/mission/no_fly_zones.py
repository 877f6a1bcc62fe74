"""No-fly zones on the host: polygons from a file, and the lattice moves that they close.

For the file see `config.geojson`. The properties `floor` and `height` of a feature are its lowest
and highest closed altitude [m]; by default the ground and the sky.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.geography import Array, Place, find_place
from marl_framework.config.geojson import read_polygons, to_metres
from marl_framework.config.model import Config
from marl_framework.config.named_maps import FIELD_KEY
from marl_framework.mission.lattice import Lattice, action_offsets
from marl_framework.mission.seeding import DEPLOYMENT
from marl_framework.mission.terrains.mixture import Terrain

KEY = "experiment.constraints.no_fly_zones"


@dataclass(frozen=True)
class Zone:
    """A closed volume of air: a polygon between two altitudes."""

    shape: Any
    """Shapely Polygon or MultiPolygon [m], relative to the lower left corner of the map."""
    floor: float
    """Lowest closed altitude [m]."""
    height: float
    """Highest closed altitude [m]; inf if unlimited."""


class NoFlyZones:
    """The zones of a map; `follows_windows` tells whether missions fly windows of that map."""

    def __init__(
        self,
        zones: Sequence[Zone],
        config: Config,
        follows_windows: bool,
        in_field: Tensor | None = None,
    ) -> None:
        import shapely

        self.zones = tuple(zones)
        self.follows_windows = follows_windows
        self._config = config
        self._lattice = Lattice(config, "cpu")
        self._altitudes = config.geometry.altitudes
        self._in_field = self._lattice.table() if in_field is None else in_field
        self._steps = action_offsets(config.experiment.constraints.num_actions)
        for zone in self.zones:
            shapely.prepare(zone.shape)

    def moves(self, origin: tuple[float, float] = (0.0, 0.0)) -> Tensor:
        """Return the moves in the field that touch no zone, [X, Y, Z, A] bool on the CPU.

        `origin` is the lower left corner of the area on the map [m]. Raises ConfigError if a UAV
        cannot start.
        """
        moves = self._in_field & ~self.closed(origin)
        where = "" if origin == (0.0, 0.0) else f", in the window at {origin[0]:g}, {origin[1]:g} m"
        check_starts(moves, self._config, self._lattice, KEY, where)
        return moves

    def closed(self, origin: tuple[float, float] = (0.0, 0.0)) -> Tensor:
        """Return the moves that touch a zone or its border, [X, Y, Z, A] bool on the CPU.

        `origin` is the lower left corner of the area on the map [m].
        """
        shape, spacing = self._lattice.shape, self._lattice.spacing
        x, y = (
            start + spacing * np.arange(number)
            for start, number in zip(origin, shape, strict=False)
        )
        closed = np.zeros((*shape, len(self._steps)), dtype=bool)
        for zone in self.zones:
            left, bottom, right, top = zone.shape.bounds
            near_x = (x >= left - spacing) & (x <= right + spacing)
            near_y = (y >= bottom - spacing) & (y <= top + spacing)
            near = np.ix_(near_x, near_y)
            points = np.stack(np.meshgrid(x[near_x], y[near_y], indexing="ij"), axis=-1)
            touching: dict[tuple[float, ...], Array] = {}  # cache: most altitudes share results
            for z, (a, (dx, dy, dz)) in product(range(shape[2]), enumerate(self._steps)):
                part = _part_between(self._altitudes[z], dz * spacing, zone.floor, zone.height)
                if part is None:
                    continue
                key = (dx, dy, *part) if dx or dy else (0, 0)
                if key not in touching:
                    step = spacing * np.array((dx, dy))
                    touching[key] = _touch(zone.shape, *(points + share * step for share in part))
                closed[:, :, z, a][near] |= touching[key]
        return torch.from_numpy(closed)

    def touch(self, start: Array, end: Array, origin: tuple[float, float]) -> bool:
        """Return whether the straight flight from `start` to `end` touches a zone.

        Both are (x, y, altitude) [m] in the area; `origin` is its lower left corner on the map [m].
        """
        for zone in self.zones:
            part = _part_between(start[2], end[2] - start[2], zone.floor, zone.height)
            if part is not None:
                first, last = (start[:2] + share * (end[:2] - start[:2]) + origin for share in part)
                if _touch(zone.shape, first, last):
                    return True
        return False


def check_starts(
    moves: Tensor, config: Config, lattice: Lattice, key: str, where: str = ""
) -> None:
    """Check that all UAVs can start and move on, with open `moves` [X, Y, Z, A] on the CPU.

    `key` of the moves' file is that of a field or of zones. Raises ConfigError if UAVs cannot
    start; the message begins with key and file, and `where` names the window.
    """
    file, place = config.experiment.constraints.no_fly_zones, "in a zone"
    advice = "use smaller zones"
    if key == FIELD_KEY:
        file, place, advice = config.environment.field, "outside the field", "use a larger field"
    start, uavs = config.experiment.missions.start, config.missions.most_agents
    free = moves[:, :, -1].any(-1)
    if start == "random":
        if int(free.sum()) < uavs:
            raise ConfigError(
                f"{key}: {file}: only {int(free.sum())} starts at "
                f"{config.geometry.altitudes[-1]:g} m{where} have an open move, for {uavs} UAVs; "
                f"{advice}, or lower experiment.missions.n_agents"
            )
        return
    if start == "published" and not free.all():
        raise ConfigError(
            f"{key}: {file}: published starts may lie {place}{where}; "
            "use experiment.missions.start=random"
        )
    sizes, spacing = torch.tensor(config.missions.team_sizes), lattice.spacing
    starts = lattice.start_positions(torch.zeros(len(sizes), free.numel()), sizes)
    for size, team in zip(sizes.tolist(), starts.tolist(), strict=True):
        for n, (x, y, _) in enumerate(team[:size], start=1):
            if not free[x, y]:
                raise ConfigError(
                    f"{key}: {file}: UAV {n} of {size} starts at {x * spacing:g}, {y * spacing:g} "
                    f"m{where}, {place} or without an open move; "
                    "use experiment.missions.start=random"
                )


def _part_between(
    start: float, climb: float, floor: float, height: float
) -> tuple[float, float] | None:
    """Return the fractions at which a move enters and leaves two altitudes; None if outside."""
    if climb == 0:
        return (0.0, 1.0) if floor <= start <= height else None
    shares = sorted(((floor - start) / climb, (height - start) / climb))
    first, last = max(shares[0], 0.0), min(shares[1], 1.0)
    return (first, last) if first <= last else None


def _touch(shape: Any, start: Array, end: Array) -> Array:
    """Return which straight lines from `start` [..., 2] to `end` [..., 2] touch a shape."""
    import shapely

    if np.array_equal(start, end):
        return np.asarray(shapely.intersects_xy(shape, start[..., 0], start[..., 1]))
    return np.asarray(shapely.intersects(shape, shapely.linestrings(np.stack((start, end), -2))))


def find_zones(
    config: Config, terrain: Terrain, split: str, in_field: Tensor | None = None
) -> NoFlyZones | None:
    """Read the configured zones, or raise a ConfigError; return None if none are configured.

    Warns with a ConfigWarning if no zone touches the area, or the map whose windows are flown.
    `in_field` are the moves within a field, [X, Y, Z, A] bool on the CPU; None for all.
    """
    name = config.experiment.constraints.no_fly_zones
    if name is None:
        return None
    file = read_polygons(name, KEY)
    place = None if file.in_metres else _place(config, terrain, split, name)
    zones = file.each(lambda polygon, properties: _zone(polygon, properties, place))
    raster = terrain.raster if split == DEPLOYMENT else None  # missions fly windows of its map
    where, extent = "area", (config.environment.x_dim, config.environment.y_dim)
    if raster is not None:
        where, extent = "map", raster.extent
    _warn_if_outside(zones, where, extent, file.in_metres, name)
    return NoFlyZones(zones, config, raster is not None, in_field)


def _warn_if_outside(
    zones: Sequence[Zone], where: str, extent: tuple[float, float], in_metres: bool, name: str
) -> None:
    """Warn if no zone touches the area or map (`where`) of `extent` [m]."""
    import shapely

    box = shapely.box(0, 0, *extent)
    if any(zone.shape.intersects(box) for zone in zones):
        return
    advice = "may be swapped (GeoJSON has longitude first)"
    if in_metres:
        advice = "are metres from its lower left corner"
    warnings.warn(
        f"{KEY}: no zone of {name} touches the {where} of {extent[0]:g} x {extent[1]:g} m; check "
        f"the coordinates, which {advice}",
        ConfigWarning,
        stacklevel=3,
    )


def _place(config: Config, terrain: Terrain, split: str, name: str) -> Place:
    raster = terrain.raster
    if raster is not None and split != DEPLOYMENT:
        raise ConfigError(
            f"{KEY}: {name} is in longitude and latitude, which on a raster only deployment "
            'supports; use metres in the area and "coordinates": "metres"'
        )
    place = None if raster is None else raster.place
    place = place or find_place(config.deployment.origin)
    if place is None:
        raise ConfigError(
            f"{KEY}: {name} is in longitude and latitude, and the location of the area is unknown; "
            'set deployment.origin, or use metres and "coordinates": "metres"'
        )
    return place


def _zone(polygon: Any, properties: Mapping[str, Any], place: Place | None) -> Zone:
    """Return a zone in metres; raise a ValueError if a property is invalid."""
    for name in properties:
        if name not in ("floor", "height") and name.lower() in ("floor", "height"):
            raise ValueError(f"property {name} is misspelt; write {name.lower()}")
    floor = _altitude(properties, "floor", 0.0)
    height = _altitude(properties, "height", math.inf)
    if not floor < height:
        raise ValueError(f"height {height:g} must be above floor {floor:g}")
    if place is not None:
        polygon = to_metres(polygon, place)
    return Zone(polygon, floor, height)


def _altitude(properties: Mapping[str, Any], name: str, default: float) -> float:
    value = properties.get(name)
    if value is None:
        return default
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number of metres, 0 or more")
    return float(value)
