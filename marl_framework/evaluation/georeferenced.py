"""What a deployment hands over on Earth: a GeoTIFF of beliefs, and waypoints as GeoJSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from marl_framework.evaluation.report import write_results
from marl_framework.mission.terrains.geotiff import Place, quiet_rasterio


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


def write_waypoints(path: Tensor, place: Place, folder: Path) -> None:
    """Write each UAV's readings to `waypoints.geojson`, longitude and latitude (RFC 7946).

    The standard counts a third coordinate from the ellipsoid; altitudes above ground are
    therefore properties.

    Args:
        path: positions from the window's lower left corner [m], [T + 1, N, 3], on the CPU.
        place: of the window.
        folder: existing folder.
    """
    features = []
    for n, track in enumerate(path.transpose(0, 1).double().numpy(), start=1):
        altitudes = {"altitudes_above_ground_m": track[:, 2].tolist()}
        line = {"type": "LineString", "coordinates": rounded_degrees(place, track)}
        properties = {"uav": n, "readings": len(track), **altitudes}
        features.append({"type": "Feature", "properties": properties, "geometry": line})
    found = {"type": "FeatureCollection", "features": features}
    write_results(found, folder / "waypoints.geojson")


def rounded_degrees(place: Place, track: np.ndarray) -> list[list[float]]:
    """Return (longitude, latitude) of positions [P, 2 or 3] [m], to a tenth of a millimetre."""
    found: list[list[float]] = place.degrees(track[:, :2]).round(9).tolist()
    return found
