"""Places on Earth: conversions between longitude, latitude and metres. Needs the extra `geo`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from marl_framework.config.errors import ConfigError

Array = npt.NDArray[Any]

WGS84 = "EPSG:4326"

quiet_rasterio = partial(warnings.catch_warnings, action="ignore")
"""Context that suppresses rasterio's warnings, such as those for files without coordinates."""


@dataclass(frozen=True)
class Place:
    """Location of a map on Earth."""

    system: str
    """Coordinate system in metres, as WKT or PROJ text."""
    corner: tuple[float, float]
    """Lower left corner, (easting, northing) [m]."""

    def moved(self, x: float, y: float) -> Place:
        """Return the place of the part of the map with its lower left corner at (x, y) [m]."""
        return Place(self.system, (self.corner[0] + x, self.corner[1] + y))

    def degrees(self, points: Array) -> Array:
        """Convert points [P, 2], in metres from the corner, to (longitude, latitude) in WGS 84."""
        return transform(self.system, WGS84, np.asarray(points, np.float64) + self.corner)

    def metres(self, points: Array) -> Array:
        """Convert points (longitude, latitude), [P, 2], to metres from the lower left corner."""
        return transform(WGS84, self.system, np.asarray(points, np.float64)) - self.corner


def place_at(latitude: float, longitude: float) -> Place:
    """Return the place of a north-up map with its lower left corner at a WGS 84 point."""
    return Place(local_system(longitude, latitude), (0.0, 0.0))


def find_place(origin: tuple[float, float] | None) -> Place | None:
    """Return the place of a map at `deployment.origin`, as `place_at`; None if it is unknown.

    Raises ConfigError if rasterio is missing.
    """
    if origin is None:
        return None
    require_rasterio("deployment.origin", "sets the location of the map")
    return place_at(*origin)


def transform(source: Any, target: Any, points: Array) -> Array:
    """Convert points [P, 2] between coordinate systems; x or longitude comes first.

    Raises ValueError if the target system does not cover a point.
    """
    from rasterio.warp import transform as convert

    converted = np.stack(convert(source, target, *np.asarray(points, np.float64).T), -1)
    if not np.isfinite(converted).all():
        raise ValueError("coordinates lie outside the coordinate system")
    return converted


def require_rasterio(key: str, what: str) -> None:
    """Raise a ConfigError with `key` and the missing extra if rasterio is not installed."""
    try:
        import_module("rasterio")
    except ImportError as error:
        raise ConfigError(
            f"{key}: {what}, which needs rasterio; pip install 'marl_framework[geo]'"
        ) from error


def local_system(longitude: float, latitude: float) -> str:
    """Return the transverse Mercator system around a point, in true metres with y to the north."""
    return (
        f"+proj=tmerc +lat_0={latitude:.9f} +lon_0={longitude:.9f} +k=1 +x_0=0 +y_0=0 "
        "+datum=WGS84 +units=m +no_defs"
    )
