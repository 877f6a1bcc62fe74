"""Zones for tests: files of polygons, and who flies through them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from torch import Tensor

from marl_framework.config.model import Config
from tests.small import small_config


def feature(shape: Any, **properties: Any) -> dict[str, Any]:
    """A polygon of shapely as a feature of GeoJSON."""
    geometry = json.loads(shapely.to_geojson(shape))
    return {"type": "Feature", "properties": properties, "geometry": geometry}


def write_zones(path: Path, *features: dict[str, Any], metres: bool = True) -> Path:
    """Write features to a file of zones."""
    unit = {"coordinates": "metres"} if metres else {}
    tree = {"type": "FeatureCollection", **unit, "features": features}
    path.write_text(json.dumps(tree), encoding="utf-8")
    return path


def zone_config(path: Path | None, number: int = 0, **options: Any) -> Config:
    """A small mission with zones and obstacles."""
    limits = {
        "no_fly_zones": None if path is None else str(path),
        "obstacles": {"number": number},
    }
    return small_config(constraints=limits, **options)


def box_zones(boxes: Tensor) -> list[tuple[Any, float, float]]:
    """The boxes [K, 5] of a mission as polygons with floor and height; none for those left out."""
    return [
        (shapely.box(x0, y0, x1, y1), 0.0, height)
        for x0, x1, y0, y1, height in boxes.tolist()
        if not np.isnan(height)
    ]


def touches(path: Any, zones: list[tuple[Any, float, float]], samples: int = 41) -> bool:
    """Whether a flight [T, 3] in metres has a point in a zone, as sampled along it."""
    start, end = path[:-1, None], path[1:, None]
    points = (start + np.linspace(0, 1, samples)[:, None] * (end - start)).reshape(-1, 3)
    x, y, z = points.T
    return any(
        bool((shapely.intersects_xy(shape, x, y) & (floor <= z) & (z <= height)).any())
        for shape, floor, height in zones
    )
