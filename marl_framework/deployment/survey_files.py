"""Maps and tracks of one map window, with one writer per file format."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from marl_framework.config.geography import Array, Place, quiet_rasterio
from marl_framework.runs.files import write_json

FRAME = (
    "local: metres from the lower left corner of the mission's window, x to the right, y up, "
    "altitude above ground; not longitude and latitude"
)
"""Description of the coordinate frame of tracks, as written to files."""


class Survey(NamedTuple):
    """Belief and tracks in one window of a map."""

    belief: Array
    """P(region of interest), [R, C] float32."""
    completed: Array | None
    """The belief as completed by a map predictor, alike; None without one."""
    tracks: Sequence[Array]
    """Positions of each UAV's readings in `FRAME` [m], [readings, 3] float64 per UAV."""
    origin: tuple[float, float]
    """Lower left corner (x, y) of the window on the map [m]."""
    cell: tuple[float, float]
    """Cell size along x and y [m]."""
    place: Place | None
    """Location of the window on Earth; None if unknown."""


def write_survey(survey: Survey, folder: Path) -> None:
    """Write a survey to a new folder, as GeoTIFF and GeoJSON if its location is known."""
    folder.mkdir()
    maps = {"belief": survey.belief, "completed": survey.completed}
    for name, values in maps.items():
        if values is None:
            continue
        np.save(folder / f"{name}.npy", values)  # [x, y]
        if survey.place is None:
            write_image(values, folder / f"{name}.tiff")
        else:
            write_geotiff(values, survey.place, survey.cell, folder / f"{name}.tif")
    write_table(survey, folder)
    (write_tracks if survey.place is None else write_geojson)(survey, folder)


def write_image(values: Array, file: Path) -> None:
    """Write a map [R, C] as TIFF in float32, with x to the right and y up."""
    done, data = cv2.imencode(".tiff", np.ascontiguousarray(np.rot90(values)))
    if not done:
        raise OSError(0, f"{file}: cannot be encoded")
    file.write_bytes(data.tobytes())


def write_geotiff(values: Array, place: Place, cell: tuple[float, float], file: Path) -> None:
    """Write a map [R, C] of P(region of interest) as a north-up GeoTIFF in float32.

    `cell` is the size of a cell along x and y [m].
    """
    import rasterio
    from rasterio.transform import from_origin

    image, (west, south) = np.rot90(values), place.corner
    form = {"driver": "GTiff", "count": 1, "dtype": "float32", "compress": "deflate"}
    form |= {"height": image.shape[0], "width": image.shape[1], "crs": place.system}
    north = south + image.shape[0] * cell[1]
    with quiet_rasterio():
        form["transform"] = from_origin(west, north, *cell)
        with rasterio.open(file, "w", **form) as raster:
            raster.write(image, 1)
            raster.set_band_description(1, "P(region of interest)")


def write_table(survey: Survey, folder: Path) -> None:
    """Write the position of each reading to `waypoints.csv`."""
    with (folder / "waypoints.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("uav", "reading", "x_m", "y_m", "altitude_m"))
        for n, track in enumerate(survey.tracks, start=1):
            points = enumerate(track.tolist(), start=1)
            writer.writerows((n, reading, *point) for reading, point in points)


def write_tracks(survey: Survey, folder: Path) -> None:
    """Write the position of each reading to `waypoints.json`."""
    tracks = enumerate(survey.tracks, start=1)
    uavs = [{"uav": n, "positions_m": track.tolist()} for n, track in tracks]
    content = {"coordinate_frame": FRAME, "window_origin_m": survey.origin, "uavs": uavs}
    write_json(folder / "waypoints.json", content)


def write_geojson(survey: Survey, folder: Path) -> None:
    """Write the tracks, in longitude and latitude, to `waypoints.geojson` (RFC 7946)."""
    assert survey.place is not None
    features = []
    for n, track in enumerate(survey.tracks, start=1):
        # No third coordinate, as it would mean the height above the ellipsoid.
        altitudes = {"altitudes_above_ground_m": track[:, 2].tolist()}
        properties = {"uav": n, "readings": len(track), **altitudes}
        geometry = line_geometry(survey.place.degrees(track[:, :2]).round(9))
        features.append({"type": "Feature", "properties": properties, "geometry": geometry})
    content = {"type": "FeatureCollection", "features": features}
    write_json(folder / "waypoints.geojson", content)


def line_geometry(degrees: Array) -> dict[str, Any] | None:
    """Return a GeoJSON line through (longitude, latitude) [P, 2], cut at the antimeridian.

    One point is no line but a point, and no points are None.
    """
    if len(degrees) < 2:
        return {"type": "Point", "coordinates": degrees[0].tolist()} if len(degrees) else None
    parts: list[list[list[float]]] = [[]]
    for start, end in pairwise(degrees):
        parts[-1].append(start.tolist())
        turn = end[0] - start[0]
        if abs(turn) > 180:
            side = 180.0 if start[0] > 0 else -180.0
            share = (side - start[0]) / (turn + 2 * side or 1.0)  # 0 if both ends lie on it
            latitude = round(start[1] + share * (end[1] - start[1]), 9)
            parts[-1].append([side, latitude])
            parts.append([[-side, latitude]])
    parts[-1].append(degrees[-1].tolist())
    if len(parts) == 1:
        return {"type": "LineString", "coordinates": parts[0]}
    return {"type": "MultiLineString", "coordinates": parts}
