"""What a deployment hands over on Earth: a GeoTIFF of beliefs, and waypoints as GeoJSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from marl_framework.mission.terrains.geotiff import Array, Place, quiet_rasterio
from marl_framework.runs.files import write_json


def write_belief(belief: Tensor, cell: tuple[float, float], place: Place, folder: Path) -> None:
    """Write P(region of interest) of a window as `belief.tif`, a GeoTIFF in float32, north up.

    Args:
        belief: [R, C], on the CPU.
        cell: size of a cell along x and y [m].
        place: of the window.
        folder: existing folder.
    """
    import rasterio
    from rasterio.transform import from_origin

    image = np.rot90(belief.float().numpy())
    north = place.corner[1] + image.shape[0] * cell[1]
    with (
        quiet_rasterio(),
        rasterio.open(
            folder / "belief.tif",
            "w",
            driver="GTiff",
            height=image.shape[0],
            width=image.shape[1],
            count=1,
            dtype="float32",
            crs=place.system,
            transform=from_origin(place.corner[0], north, *cell),
            compress="deflate",
        ) as file,
    ):
        file.write(image, 1)
        file.set_band_description(1, "P(region of interest)")


def write_waypoints(paths: Sequence[Tensor], place: Place, folder: Path) -> None:
    """Write each UAV's readings to `waypoints.geojson`, longitude and latitude (RFC 7946).

    The standard counts a third coordinate from the ellipsoid; altitudes above ground are
    therefore properties.

    Args:
        paths: positions of each UAV from the window's lower left corner [m], [readings, 3] each,
            on the CPU.
        place: of the window.
        folder: existing folder.
    """
    features = []
    for n, path in enumerate(paths, start=1):
        track = path.double().numpy()
        altitudes = {"altitudes_above_ground_m": track[:, 2].tolist()}
        properties = {"uav": n, "readings": len(track), **altitudes}
        geometry = line_geometry(place.degrees(track[:, :2]).round(9))
        features.append({"type": "Feature", "properties": properties, "geometry": geometry})
    found = {"type": "FeatureCollection", "features": features}
    write_json(folder / "waypoints.geojson", found)


def line_geometry(degrees: Array) -> dict[str, Any]:
    """Return a line as GeoJSON has it, cut where it crosses the antimeridian.

    Args:
        degrees: (longitude, latitude), [P, 2].
    """
    parts: list[list[list[float]]] = [[]]
    for start, end in pairwise(degrees):
        parts[-1].append(start.tolist())
        turn = end[0] - start[0]
        if abs(turn) > 180:
            side = 180.0 if start[0] > 0 else -180.0
            share = (side - start[0]) / (turn + 2 * side)
            latitude = round(start[1] + share * (end[1] - start[1]), 9)
            parts[-1].append([side, latitude])
            parts.append([[-side, latitude]])
    parts[-1].append(degrees[-1].tolist())
    if len(parts) == 1:
        return {"type": "LineString", "coordinates": parts[0]}
    return {"type": "MultiLineString", "coordinates": parts}
