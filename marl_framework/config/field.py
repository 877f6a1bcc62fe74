"""Fields: polygons that missions map, read from a GeoJSON file, and the area around them."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

from marl_framework.config.errors import ConfigError
from marl_framework.config.named_maps import DATA, FIELD_KEY

RANDOM = "random"
"""Value of the key for which each mission draws a field."""


class Field(NamedTuple):
    """A field in metres."""

    shape: Any
    """Shapely Polygon or MultiPolygon [m], from the lower left corner of its bounding box."""
    origin: tuple[float, float] | None
    """(latitude, longitude) of this corner [degrees]; None if the file is in metres."""

    def area(self, spacing: float) -> tuple[float, float]:
        """Return the sides of the area along x and y [m], rounded up to the lattice's spacing."""
        _, _, x, y = self.shape.bounds
        return _round_up(x, spacing), _round_up(y, spacing)


def read_field(name: str) -> Field:
    """Read a field; several polygons are united.

    Raises ConfigError if the file cannot be read, or a polygon is invalid.
    """
    # Imported here, because configurations without a field need no NumPy.
    from marl_framework.config.geography import require_rasterio
    from marl_framework.config.geojson import read_polygons

    file = read_polygons(name, FIELD_KEY)
    import shapely
    from shapely.affinity import translate

    shape, origin = shapely.union_all(file.each(lambda polygon, _: polygon)), None
    if not file.in_metres:
        require_rasterio(FIELD_KEY, f"{name} is in longitude and latitude")
        try:
            shape, origin = _around_corner(shape)
        except ValueError as error:
            raise ConfigError(f"{FIELD_KEY}: {name}: {error}") from error
    left, bottom, _, _ = shape.bounds
    return Field(translate(shape, -left, -bottom), origin)


def _around_corner(shape: Any) -> tuple[Any, tuple[float, float]]:
    """Convert a shape in degrees to metres from the lower left corner of its bounding box.

    Returns the shape and the (latitude, longitude) of the corner, rounded as in `place_at`.
    """
    import numpy as np

    from marl_framework.config.geography import place_at
    from marl_framework.config.geojson import to_metres

    longitude, latitude, _, _ = shape.bounds
    for _ in range(2):  # meridians converge: the first corner is not that of the metres
        place = place_at(latitude, longitude)
        metres = to_metres(shape, place)
        corner = place.degrees(np.array([metres.bounds[:2]]))[0].round(9).tolist()
        longitude, latitude = corner
    return to_metres(shape, place_at(latitude, longitude)), (latitude, longitude)


def with_area(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of a configuration with the area and place of its field, if it has one.

    A file that does not exist changes nothing, so that checkpoints can be read without it.
    Missions cannot start without it.
    """
    area = tree.get("environment", {})
    name = area.get("field")
    spacing = tree.get("experiment", {}).get("constraints", {}).get("spacing", 5.0)
    usable = isinstance(spacing, int | float) and 0 < spacing < math.inf
    if not isinstance(name, str) or name == RANDOM or not usable:
        return tree
    if not name.startswith(DATA) and not os.path.isfile(os.path.expanduser(name)):
        return tree
    field = read_field(name)
    x_dim, y_dim = field.area(spacing)
    sides = {"x_dim": x_dim, "y_dim": y_dim, "area": None}
    tree = {**tree, "environment": {**area, **sides}}
    if field.origin is not None:
        tree["deployment"] = {**tree.get("deployment", {}), "origin": field.origin}
    return tree


def _round_up(side: float, spacing: float) -> float:
    return max(1, math.ceil(side / spacing - 1e-6)) * spacing
