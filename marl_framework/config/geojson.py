"""GeoJSON files of polygons, in longitude and latitude (WGS 84) or in metres.

A file is a FeatureCollection of polygons, a Feature, or a geometry alone. Coordinates are longitude
and latitude, or metres if the file has `"coordinates": "metres"` next to its features. Needs
shapely, from the extra `geo`.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Place
from marl_framework.config.named_maps import locate

_LONGEST_EDGE = 1e-3  # [degrees]; longer edges are curves in metres


class PolygonFile(NamedTuple):
    """Contents of a GeoJSON file of polygons."""

    features: list[Any]
    """Features, at least one."""
    in_metres: bool
    """Whether coordinates are metres; otherwise longitude and latitude."""


def read_polygons(name: str, key: str) -> PolygonFile:
    """Read a GeoJSON file that the configuration names at `key`.

    Raises ConfigError if shapely is missing, or the file has no features.
    """

    def error(text: str) -> ConfigError:
        return ConfigError(f"{key}: {text}")

    try:
        import_module("shapely")
    except ImportError as missing:
        raise error("polygons need shapely; pip install 'marl_framework[geo]'") from missing
    path = locate(name, key)
    if not os.path.isfile(path):
        raise error(f"{name} does not exist or is not a file")
    try:
        tree = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as unreadable:
        raise error(f"{name} cannot be read as GeoJSON: {unreadable}") from unreadable
    match tree:
        case {"type": "FeatureCollection"}:
            pass
        case {"type": "Feature"}:
            tree = tree | {"features": [tree]}
        case {"type": "Polygon" | "MultiPolygon"}:
            tree = {"features": [{"geometry": tree}]}
        case _:
            raise error(f"{name} is not a GeoJSON FeatureCollection, Feature or polygon")
    if not isinstance(tree.get("features"), list) or not tree["features"]:
        raise error(f"{name} has no features")
    if tree.get("coordinates", "metres") != "metres":
        raise error(f'{name}: "coordinates" must be "metres", or absent for WGS 84')
    return PolygonFile(tree["features"], "coordinates" in tree)


def polygon_of(feature: Any) -> Any:
    """Return the shapely Polygon or MultiPolygon of a feature, in the file's coordinates.

    Raises ValueError if it is not a polygon, or an invalid one.
    """
    import shapely
    from shapely.geometry import shape

    geometry = feature.get("geometry") if isinstance(feature, dict) else None
    if not isinstance(geometry, dict) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise ValueError("geometry must be a Polygon or a MultiPolygon")
    with np.errstate(invalid="ignore"):  # NaN is rejected below
        polygon = shapely.force_2d(shape(geometry))
    if polygon.is_empty or not polygon.is_valid:
        raise ValueError(f"polygon is invalid: {shapely.is_valid_reason(polygon)}")
    return polygon


def to_metres(polygon: Any, place: Place) -> Any:
    """Convert a polygon from longitude and latitude to metres from a place's lower left corner.

    Raises ValueError if coordinates are not degrees.
    """
    import shapely

    check_degrees(polygon)
    return shapely.transform(shapely.segmentize(polygon, _LONGEST_EDGE), place.metres)


def check_degrees(polygon: Any) -> None:
    """Raise a ValueError if coordinates are not longitude and latitude."""
    west, south, east, north = polygon.bounds
    if west < -180 or east > 180 or south < -90 or north > 90:
        raise ValueError("coordinates must be longitude, latitude in degrees")


def explain(error: Exception) -> str:
    """Return the message of an error as one short line; shapely raises many types."""
    return " ".join(str(error).split())[:200]
