"""Where zones and obstacles of a flown mission lie, for figures and pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from marl_framework.evaluation.flight import FlightRecord

_COLOUR = "#C1272D"

Ring = list[list[float]]


@dataclass(frozen=True)
class Outline:
    """One closed polygon."""

    rings: list[Ring]
    """Its border, then its holes: points (x, y) in metres of the area, the first one again last."""
    floor: float
    height: float
    """Between these altitudes it is closed [m]; inf is the sky."""

    @property
    def label(self) -> str:
        """What a reader is told of it."""
        top = "up" if math.isinf(self.height) else f"to {self.height:.3g} m"
        return f"closed from {self.floor:.3g} m {top}"


def zone_outlines(record: FlightRecord) -> list[Outline]:
    """Return the outlines of a mission's zones within its area, then of its obstacles.

    Args:
        record: flight record on the CPU, of this mission alone.
    """
    found = list(_polygons(record))
    boxes = [] if record.boxes is None else record.boxes[0].tolist()
    for x0, x1, y0, y1, height in boxes:
        if not math.isnan(height):
            ring = [[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]]
            found.append(Outline([ring], 0.0, height))
    return found


def _polygons(record: FlightRecord) -> list[Outline]:
    if record.zones is None:
        return []
    import shapely
    from shapely.affinity import translate

    area, origin = record.config.environment, (0.0, 0.0)
    if record.zones.follows_windows and record.window_origins is not None:
        origin = tuple(record.window_origins[0].tolist())
    window = shapely.box(*origin, origin[0] + area.x_dim, origin[1] + area.y_dim)
    outlines = []
    for zone in record.zones.zones:
        inside = translate(zone.shape.intersection(window), -origin[0], -origin[1])
        for part in shapely.get_parts(inside):
            if part.geom_type == "Polygon" and not part.is_empty:
                rings = [_points(ring) for ring in (part.exterior, *part.interiors)]
                outlines.append(Outline(rings, zone.floor, zone.height))
    return outlines


def _points(ring: Any) -> Ring:
    return [[float(x), float(y)] for x, y in ring.coords]


def draw_zones(axes: Axes, record: FlightRecord) -> None:
    """Draw a mission's zones and obstacles, hatched."""
    for outline in zone_outlines(record):
        curve = Curve.make_compound_path(*(Curve(ring, closed=True) for ring in outline.rings))
        axes.add_patch(
            PathPatch(curve, facecolor="none", edgecolor=_COLOUR, hatch="////", linewidth=1.2)
        )
