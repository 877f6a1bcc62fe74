"""No-fly zones on the host: polygons from a file, and the lattice moves that they close.

A file is a GeoJSON FeatureCollection of polygons in longitude and latitude (WGS 84), or in metres
if it has `"coordinates": "metres"` next to its features. The properties `floor` and `height` of a
feature are its lowest and highest closed altitude [m]; by default the ground and the sky.
Needs shapely, from the extra `geo`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Array, Place, place_at, require_rasterio
from marl_framework.config.model import Config
from marl_framework.mission.lattice import Lattice, action_offsets
from marl_framework.mission.seeding import DEPLOYMENT
from marl_framework.mission.terrains.mixture import Terrain

KEY = "experiment.constraints.no_fly_zones"
_LONGEST_EDGE = 1e-3  # [degrees]; longer edges are curves in metres


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

    def __init__(self, zones: Sequence[Zone], config: Config, follows_windows: bool) -> None:
        import shapely

        self.zones = tuple(zones)
        self.follows_windows = follows_windows
        self._config = config
        self._lattice = Lattice(config, "cpu")
        self._altitudes = config.geometry.altitudes
        self._steps = action_offsets(config.experiment.constraints.num_actions)
        for zone in self.zones:
            shapely.prepare(zone.shape)

    def moves(self, origin: tuple[float, float] = (0.0, 0.0)) -> Tensor:
        """Return the lattice moves that touch no zone, [X, Y, Z, A] bool on the CPU.

        `origin` is the lower left corner of the area on the map [m]. Raises ConfigError if a UAV
        cannot start.
        """
        moves = self._lattice.table() & ~self.closed(origin)
        self._check_starts(moves, origin)
        return moves

    def _check_starts(self, moves: Tensor, origin: tuple[float, float]) -> None:
        """Raise a ConfigError if a start position lies in a zone or has no open move."""
        start, uavs = self._config.experiment.missions.start, self._config.missions.most_agents
        free = moves[:, :, -1].any(-1)
        where = "" if origin == (0.0, 0.0) else f", in the window at {origin[0]:g}, {origin[1]:g} m"
        if start == "random":
            if int(free.sum()) < uavs:
                raise _error(
                    f"only {int(free.sum())} starts at {self._altitudes[-1]:g} m{where} "
                    f"have an open move, for {uavs} UAVs; use smaller zones, or lower "
                    "experiment.missions.n_agents"
                )
            return
        if start == "published" and not free.all():
            raise _error(
                f"published starts may lie in a zone{where}; use experiment.missions.start=random"
            )
        sizes, spacing = torch.tensor(self._config.missions.team_sizes), self._lattice.spacing
        starts = self._lattice.start_positions(torch.zeros(len(sizes), free.numel()), sizes)
        for size, team in zip(sizes.tolist(), starts.tolist(), strict=True):
            for n, (x, y, _) in enumerate(team[:size], start=1):
                if not free[x, y]:
                    raise _error(
                        f"UAV {n} of {size} starts at {x * spacing:g}, {y * spacing:g} m{where}, "
                        "in a zone or without an open move; use experiment.missions.start=random"
                    )

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


def find_zones(config: Config, terrain: Terrain, split: str) -> NoFlyZones | None:
    """Read the configured zones, or raise a ConfigError; return None if none are configured."""
    name = config.experiment.constraints.no_fly_zones
    if name is None:
        return None
    try:
        import_module("shapely")
    except ImportError as error:
        raise _error("zones need shapely; pip install 'marl_framework[geo]'") from error
    tree = _read(name)
    place = None if tree.get("coordinates") == "metres" else _place(config, terrain, split, name)
    zones = []
    for number, feature in enumerate(tree["features"], start=1):
        try:
            zones.append(_zone(feature, place))
        except Exception as error:  # shapely raises many types
            text = " ".join(str(error).split())[:200]
            raise _error(f"{name}, feature {number}: {text}") from error
    return NoFlyZones(zones, config, split == DEPLOYMENT and terrain.raster is not None)


def _place(config: Config, terrain: Terrain, split: str, name: str) -> Place:
    origin, raster = config.deployment.origin, terrain.raster
    if raster is not None and split != DEPLOYMENT:
        raise _error(
            f"{name} is in longitude and latitude, which on a raster only deployment supports; "
            'use metres in the area and "coordinates": "metres"'
        )
    if raster is not None and raster.place is not None:
        return raster.place
    if origin is None:
        raise _error(
            f"{name} is in longitude and latitude, and the location of the area is unknown; set "
            'deployment.origin, or use metres and "coordinates": "metres"'
        )
    require_rasterio(KEY, f"{name} is in longitude and latitude")
    return place_at(*origin)


def _error(text: str) -> ConfigError:
    return ConfigError(f"{KEY}: {text}")


def _read(name: str) -> Mapping[str, Any]:
    path = Path(os.path.expanduser(name))
    if not os.path.isfile(path):
        raise _error(f"{name} does not exist or is not a file")
    try:
        tree = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise _error(f"{name} cannot be read as GeoJSON: {error}") from error
    if not isinstance(tree, dict) or tree.get("type") != "FeatureCollection":
        raise _error(f"{name} is not a GeoJSON FeatureCollection")
    if not isinstance(tree.get("features"), list) or not tree["features"]:
        raise _error(f"{name} has no features")
    if tree.get("coordinates", "metres") != "metres":
        raise _error(f'{name}: "coordinates" must be "metres", or absent for WGS 84')
    return tree


def _zone(feature: Any, place: Place | None) -> Zone:
    """Convert a GeoJSON feature to a zone in metres; raise a ValueError if it is invalid."""
    import shapely
    from shapely.geometry import shape

    geometry = feature.get("geometry") if isinstance(feature, dict) else None
    if not isinstance(geometry, dict) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise ValueError("geometry must be a Polygon or a MultiPolygon")
    with np.errstate(invalid="ignore"):  # NaN is rejected below
        polygon = shapely.force_2d(shape(geometry))
    if polygon.is_empty or not polygon.is_valid:
        raise ValueError(f"polygon is invalid: {shapely.is_valid_reason(polygon)}")
    properties = feature.get("properties") or {}
    for name in properties:
        if name not in ("floor", "height") and name.lower() in ("floor", "height"):
            raise ValueError(f"property {name} is misspelt; write {name.lower()}")
    floor = _altitude(properties, "floor", 0.0)
    height = _altitude(properties, "height", math.inf)
    if not floor < height:
        raise ValueError(f"height {height:g} must be above floor {floor:g}")
    if place is not None:
        west, south, east, north = polygon.bounds
        if west < -180 or east > 180 or south < -90 or north > 90:
            raise ValueError("coordinates must be longitude, latitude in degrees")
        polygon = shapely.transform(shapely.segmentize(polygon, _LONGEST_EDGE), place.metres)
    return Zone(polygon, floor, height)


def _altitude(properties: Mapping[str, Any], name: str, default: float) -> float:
    value = properties.get(name)
    if value is None:
        return default
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number of metres, 0 or more")
    return float(value)
