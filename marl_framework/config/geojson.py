"""GeoJSON files of polygons, in longitude and latitude (WGS 84) or in metres.

A file is a FeatureCollection of polygons, a Feature, or a geometry alone. Coordinates are longitude
and latitude, or metres if the file has `"coordinates": "metres"` next to its features. Needs
shapely, from the extra `geo`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import numpy as np

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Place
from marl_framework.config.named_maps import locate

_LONGEST_EDGE = 1e-3  # [degrees]; longer edges are curves in metres

Converted = TypeVar("Converted")


class PolygonFile(NamedTuple):
    """Contents of a GeoJSON file of polygons."""

    where: str
    """Key of the configuration, and name of the file."""
    features: list[Any]
    """Features, at least one."""
    in_metres: bool
    """Whether coordinates are metres; otherwise longitude and latitude."""

    def each(self, convert: Callable[[Any, Any], Converted]) -> list[Converted]:
        """Convert the polygon of each feature, in the file's coordinates, and its properties.

        Raises ConfigError with the number of a feature that is no valid polygon, or for which
        `convert` raises an error.
        """
        converted = []
        for number, feature in enumerate(self.features, start=1):
            try:
                polygon = _polygon_of(feature, self.in_metres)
                converted.append(convert(polygon, feature.get("properties") or {}))
            except Exception as error:  # shapely raises many types
                raise ConfigError(f"{self.where}, feature {number}: {error!s:.200}") from error
        return converted


def read_polygons(name: str, key: str) -> PolygonFile:
    """Read a GeoJSON file that the configuration names at `key`.

    Raises ConfigError if shapely is missing, or the file has no features.
    """
    try:
        import_module("shapely")
    except ImportError as error:
        text = f"{key}: polygons need shapely; pip install 'marl_framework[geo]'"
        raise ConfigError(text) from error
    path, where = locate(name, key), f"{key}: {name}"
    if not os.path.isfile(path):
        raise ConfigError(f"{where} does not exist or is not a file")
    try:
        tree = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} cannot be read as GeoJSON: {error}") from error
    match tree:
        case {"type": "FeatureCollection"}:
            pass
        case {"type": "Feature"}:
            tree = tree | {"features": [tree]}
        case {"type": "Polygon" | "MultiPolygon"}:
            tree = {"features": [{"geometry": tree}]}
        case _:
            raise ConfigError(f"{where} is not a GeoJSON FeatureCollection, Feature or polygon")
    if not isinstance(tree.get("features"), list) or not tree["features"]:
        raise ConfigError(f"{where} has no features")
    if tree.get("coordinates", "metres") != "metres":
        raise ConfigError(f'{where}: "coordinates" must be "metres", or absent for WGS 84')
    return PolygonFile(where, tree["features"], "coordinates" in tree)


def _polygon_of(feature: Any, in_metres: bool) -> Any:
    """Return the shapely Polygon or MultiPolygon of a feature, in the file's coordinates.

    Raises ValueError if it is not a polygon, or an invalid one, or coordinates are not degrees.
    """
    import shapely
    from shapely.geometry import shape

    match feature:
        case {"geometry": {"type": "Polygon" | "MultiPolygon", "coordinates": _} as geometry}:
            pass
        case _:
            raise ValueError("geometry must be a Polygon or a MultiPolygon with coordinates")
    with np.errstate(invalid="ignore"):  # NaN is rejected below
        polygon = shapely.force_2d(shape(geometry))
    if polygon.is_empty:
        raise ValueError("polygon is empty")
    if not polygon.is_valid:
        raise ValueError(f"polygon is invalid: {shapely.is_valid_reason(polygon)}")
    west, south, east, north = polygon.bounds
    if not in_metres and (west < -180 or east > 180 or south < -90 or north > 90):
        raise ValueError("coordinates must be longitude, latitude in degrees")
    return polygon


def to_metres(polygon: Any, place: Place) -> Any:
    """Convert a polygon from longitude and latitude to metres from a place's lower left corner."""
    import shapely

    return shapely.transform(shapely.segmentize(polygon, _LONGEST_EDGE), place.metres)
