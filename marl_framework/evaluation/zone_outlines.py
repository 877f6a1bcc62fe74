"""Outlines of the zones and obstacles of a flown mission."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from marl_framework.evaluation.flight import FlightRecord
from marl_framework.mission.no_fly_zones import Zone

_COLOUR = "#C1272D"


@dataclass(frozen=True)
class Outline:
    """One closed polygon."""

    rings: list[list[list[float]]]
    """Border and holes: points (x, y) in metres of the area; the last point repeats the first."""
    floor: float
    """Lowest closed altitude [m]."""
    height: float
    """Highest closed altitude [m]; inf for the sky."""

    @property
    def label(self) -> str:
        """Closed altitudes in words."""
        top = "up" if math.isinf(self.height) else f"to {self.height:.3g} m"
        return f"closed from {self.floor:.3g} m {top}"


def polygons(
    zone: Zone, origin: tuple[float, float], size: tuple[float, float], margin: float = 0.0
) -> list[Any]:
    """Return the polygons of a zone in a window and the `margin` [m] around it.

    They are relative to the window's lower left corner, `origin` [m]; its sides are `size` [m].
    """
    import shapely
    from shapely.affinity import translate

    x, y = origin
    near = shapely.box(x - margin, y - margin, x + size[0] + margin, y + size[1] + margin)
    parts = shapely.get_parts(translate(zone.shape.intersection(near), -x, -y))
    return [part for part in parts if part.geom_type == "Polygon" and not part.is_empty]


def zone_outlines(record: FlightRecord) -> list[Outline]:
    """Return the outlines of zones within the area of a mission `alone`, then of its obstacles."""
    found = []
    if record.zones is not None:
        area, origin = record.config.environment, (0.0, 0.0)
        if record.zones.follows_windows and record.window_origins is not None:
            origin = tuple(record.window_origins[0].tolist())
        for zone in record.zones.zones:
            for part in polygons(zone, origin, (area.x_dim, area.y_dim)):
                rings = [
                    [[float(x), float(y)] for x, y in ring.coords]
                    for ring in (part.exterior, *part.interiors)
                ]
                found.append(Outline(rings, zone.floor, zone.height))
    boxes = [] if record.boxes is None else record.boxes[0].tolist()
    for x0, x1, y0, y1, height in boxes:
        if not math.isnan(height):
            ring = [[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]]
            found.append(Outline([ring], 0.0, height))
    return found


def draw_zones(axes: Axes, record: FlightRecord) -> None:
    """Draw a mission's zones and obstacles, hatched."""
    for outline in zone_outlines(record):
        curve = Curve.make_compound_path(*(Curve(ring, closed=True) for ring in outline.rings))
        axes.add_patch(
            PathPatch(curve, facecolor="none", edgecolor=_COLOUR, hatch="////", linewidth=1.2)
        )
