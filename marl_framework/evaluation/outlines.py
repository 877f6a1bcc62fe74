"""Outlines of what is closed to UAVs: zones, obstacles and the area outside a field."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.evaluation.flight import FlightRecord
from marl_framework.mission.no_fly_zones import Zone

OUTSIDE = "outside the field"
"""Label of the area outside a field."""


class Outline(NamedTuple):
    """One closed polygon."""

    rings: list[list[list[float]]]
    """Border and holes as points (x, y) [m] of the area; the last point repeats the first."""
    floor: float
    """Lowest closed altitude [m]."""
    height: float
    """Highest closed altitude [m]; inf if there is no upper limit."""
    is_field: bool = False
    """Whether this is the area outside a field."""

    @property
    def label(self) -> str:
        """Description of the closed altitudes."""
        if self.is_field:
            return OUTSIDE
        top = "up" if math.isinf(self.height) else f"to {self.height:.3g} m"
        return f"closed from {self.floor:.3g} m {top}"


def polygons(
    zone: Zone, origin: tuple[float, float], size: tuple[float, float], margin: float = 0.0
) -> list[Any]:
    """Return a zone's polygons within a window of `size` [m], and a `margin` [m] around it.

    Coordinates are relative to the window's lower left corner, `origin` [m].
    """
    import shapely
    from shapely.affinity import translate

    x, y = origin
    window = shapely.box(x - margin, y - margin, x + size[0] + margin, y + size[1] + margin)
    parts = shapely.get_parts(translate(zone.shape.intersection(window), -x, -y))
    return [part for part in parts if part.geom_type == "Polygon" and not part.is_empty]


def zone_outlines(record: FlightRecord) -> list[Outline]:
    """Return the outlines of field, zones and obstacles in the area of a single-mission record."""
    outlines = [] if record.inside is None else _outside(record.inside[0], record.config)
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
                outlines.append(Outline(rings, zone.floor, zone.height))
    boxes = [] if record.boxes is None else record.boxes[0].tolist()
    for x0, x1, y0, y1, height in boxes:
        if not math.isnan(height):
            ring = [[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]]
            outlines.append(Outline([ring], 0.0, height))
    return outlines


def _outside(inside: Tensor, config: Config) -> list[Outline]:
    """Return the outline of the cells that are not `inside` [R, C], to half a cell."""
    outside = np.ascontiguousarray(~inside.numpy()).astype(np.uint8)
    last, size = np.array(outside.shape) - 1, np.array(config.geometry.cell_size)
    rings = []
    for contour in cv2.findContours(outside, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)[0]:
        cells = cv2.approxPolyDP(contour, 0.6, True)[:, 0, ::-1]  # x first
        if len(cells) > 2:
            corners = np.where(cells == 0, 0, np.where(cells == last, last + 1, cells + 0.5))
            rings.append((np.vstack((corners, corners[:1])) * size).round(3).tolist())
    return [Outline(rings, 0.0, math.inf, is_field=True)] if rings else []
