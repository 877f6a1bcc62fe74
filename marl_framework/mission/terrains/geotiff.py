"""Reading of GeoTIFF files: bands, resolution and location. Needs the extra `geo`.

Maps that are north up, with square pixels in true metres, are used unchanged; others are resampled.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import (
    WGS84,
    Array,
    Place,
    local_system,
    quiet_rasterio,
    require_rasterio,
    transform,
)

_PATH, _KEY, _RESOLUTION = (f"sensor.simulation.raster.{k}" for k in ("path", "key", "resolution"))
# ModelPixelScale, ModelTransformation, GeoKeyDirectory, GDAL_NODATA.
_GEO_TAGS = {33550, 34264, 34735, 42113}
_MOST_PIXELS = 2**28  # in a resampled map (1 GiB), or more if the file is larger
_SCALE_ERROR = 2e-3
"""Largest relative error of distances on the map: UTM is below 1e-3, Web Mercator far above."""


def is_geotiff(path: Path) -> bool:
    """Return whether a TIFF file has a location or a no-data value."""
    orders: dict[bytes, Literal["little", "big"]] = {b"II": "little", b"MM": "big"}
    with path.open("rb") as file:
        head = file.read(16)
        order = orders.get(head[:2])
        if order is None:
            return False
        big = int.from_bytes(head[2:4], order) == 43  # BigTIFF
        size, entry = (8, 20) if big else (2, 12)
        file.seek(int.from_bytes(head[8:16] if big else head[4:8], order))
        number = int.from_bytes(file.read(size), order)  # of tags in the first image
        entries = file.read(min(number, 2**16) * entry)
    tags = {int.from_bytes(entries[k : k + 2], order) for k in range(0, len(entries), entry)}
    return bool(_GEO_TAGS & tags)


def read_geotiff(
    path: Path, name: str, key: str | None, resolution: float | None
) -> tuple[Array, float | None, Place | None]:
    """Read one band of a GeoTIFF.

    Args:
        path: path of the file.
        name: file name for error messages.
        key: number or description of the band; None for the only band.
        resolution: pixel size to resample degrees to [m]; None for the file's pixel size.

    Returns:
        Values [row, column] float32, NaN where nothing was measured; pixel size [m]; and place.
        Without a coordinate system, the pixel size is `resolution` and the place None.
    """
    require_rasterio(_PATH, f"{name} is a GeoTIFF")
    import rasterio

    with quiet_rasterio(), rasterio.open(path) as file:
        band = _band(file, name, key)
        kind = file.dtypes[band - 1]
        if kind.startswith("complex"):
            raise ConfigError(f"{_PATH}: {name} contains {kind}; use a band of real numbers")
        masked = file.read(band, masked=True).astype(np.float32)
        values = np.ma.filled(masked * file.scales[band - 1] + file.offsets[band - 1], np.nan)
        values = np.asarray(values, np.float32)
        if file.crs is None:
            if resolution is None:
                raise ConfigError(
                    f"{_RESOLUTION}: {name} has no coordinate system; set its metres per pixel "
                    "here, or write one into the file, as gdal_edit.py -a_srs EPSG:… does"
                )
            return values, resolution, None
        return _in_metres(file, values, name, resolution)


def _in_metres(
    file: Any, values: Array, name: str, resolution: float | None
) -> tuple[Array, float, Place]:
    """Return the band north up, in square pixels of true metres; resample it if necessary."""
    at, middle = file.transform, np.array([file.width, file.height]) / 2
    if at.is_degenerate:
        raise ConfigError(f"{_PATH}: pixels of {name} have no extent; correct the transform")
    if not (file.crs.is_projected or file.crs.is_geographic):
        raise ConfigError(
            f"{_PATH}: the coordinate system of {name} has no location on Earth; use a "
            "projected system such as UTM"
        )
    pixel = _on_map(file, middle + np.array([(0, 0), (1, 0), (0, 1)]))  # in the middle
    local = local_system(*transform(file.crs, WGS84, pixel)[0])
    near = transform(file.crs, local, pixel)
    sides = [math.dist(near[0], near[1]), math.dist(near[0], near[2])]  # [m]
    nominal = [math.hypot(at.a, at.d), math.hypot(at.b, at.e)]
    true = all(abs(sides[n] / nominal[n] - 1) < _SCALE_ERROR for n in (0, 1))
    if true and at.b == at.d == 0 and at.a > 0 and math.isclose(at.a, -at.e, rel_tol=1e-9):
        if resolution is not None and not math.isclose(resolution, at.a, rel_tol=1e-6):
            raise ConfigError(
                f"{_RESOLUTION}: {resolution:g} is not the {at.a:g} m of {name}; set it to null"
            )
        return values, at.a, Place(file.crs.to_wkt(), (at.c, at.f + file.height * at.e))
    if true:
        return _resample(file, values, name, file.crs, resolution or min(nominal))
    return _resample(file, values, name, local, resolution or min(sides))


def _on_map(file: Any, pixels: Array) -> Array:
    """Convert pixel positions (column, row), [P, 2], to coordinates of the file."""
    matrix = np.array(file.transform).reshape(3, 3)
    return pixels @ matrix[:2, :2].T + matrix[:2, 2]


def _resample(
    file: Any, values: Array, name: str, system: Any, resolution: float
) -> tuple[Array, float, Place]:
    from rasterio.transform import from_origin
    from rasterio.warp import Resampling, reproject

    along = np.linspace(0, 1, 21)
    shares = np.stack(np.meshgrid(along, along), -1).reshape(-1, 2)
    border = transform(file.crs, system, _on_map(file, shares * (file.width, file.height)))
    (left, bottom), (right, top) = border.min(0), border.max(0)
    columns = max(1, math.ceil((right - left) / resolution - 1e-6))
    rows = max(1, math.ceil((top - bottom) / resolution - 1e-6))
    if rows * columns > max(_MOST_PIXELS, 4 * values.size):
        raise ConfigError(
            f"{_RESOLUTION}: {resolution:g} m gives {rows} x {columns} pixels for {name} of "
            f"{file.height} x {file.width}; use more metres per pixel"
        )
    resampled = np.full((rows, columns), np.nan, np.float32)
    reproject(
        values,
        resampled,
        src_transform=file.transform,
        src_crs=file.crs,
        src_nodata=np.nan,
        dst_transform=from_origin(left, bottom + rows * resolution, resolution, resolution),
        dst_crs=system,
        dst_nodata=np.nan,
        resampling=Resampling.bilinear,
        tolerance=0.01,  # of a pixel
    )
    text = system if isinstance(system, str) else system.to_wkt()
    return resampled, resolution, Place(text, (float(left), float(bottom)))


def _band(file: Any, name: str, key: str | None) -> int:
    """Return the number, from 1, of the band with a given key."""
    listed = [text or str(n) for n, text in enumerate(file.descriptions, start=1)]
    if key is None and file.count > 1:
        raise ConfigError(f"{_KEY}: {name} has {file.count} bands; set one of {', '.join(listed)}")
    if key is None or key in listed:
        return 1 if key is None else listed.index(key) + 1
    if key.isdecimal() and 1 <= int(key) <= file.count:
        return int(key)
    raise ConfigError(f"{_KEY}: {name} has no band {key!r}; choose from {', '.join(listed)}")
