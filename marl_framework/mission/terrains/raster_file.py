"""Measured maps on the host: read the file and find the windows to fly over.

The map [x, y] is cut across one axis into a strip for each split. Each window lies entirely within
one strip, so that training, validation and test never share a pixel.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Array, Place
from marl_framework.config.mission import RasterConfig
from marl_framework.config.model import Config
from marl_framework.config.named_maps import find_map, locate
from marl_framework.mission.seeding import DEPLOYMENT, SPLITS
from marl_framework.mission.terrains.geotiff import is_geotiff, read_geotiff

SHARES = (0.6, 0.2, 0.2)
"""Target shares of admissible windows for training, validation and test."""
MAX_WINDOWS = 2**22
"""Largest number of windows; larger maps use an evenly spaced subset to bound memory."""

_NUMPY, _TIFF = (".npy", ".npz"), (".tif", ".tiff")
_IMAGE = (".png", *_TIFF)

Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RasterMap:
    """A measured map."""

    name: str
    """File name in the configuration."""
    values: npt.NDArray[np.float32]
    """Values [pixels along x, pixels along y], NaN where nothing was measured."""
    resolution: float
    """Metres per pixel."""
    place: Place | None = None
    """Location of the map; None if the file has no location."""

    @property
    def measured(self) -> Mask:
        """Mask of measured pixels."""
        return ~np.isnan(self.values)


def read_raster(config: RasterConfig) -> RasterMap:
    """Read a PNG, TIFF, NPY or NPZ file, a named map `data:NAME`, or a sample `matplotlib:NAME`.

    Arrays are indexed [x, y]. Image columns run along x and image rows against y. Integers are
    converted to float32; infinite values count as not measured. A GeoTIFF is converted to metres
    and north up; see `geotiff`. Raises ConfigError if the file cannot be read, or has no resolution
    or no usable map.
    """
    name = config.path or ""
    named, path = find_map(name), locate(name)
    suffix = path.suffix.lower()
    if suffix not in (*_NUMPY, *_IMAGE):
        raise _error("path", f"{name} is not a PNG, TIFF, NPY or NPZ file")
    if not os.path.isfile(path):  # unlike Path.is_file, never raises
        raise _error("path", f"{name} does not exist or is not a file")
    stored: float | None = None
    place: Place | None = None
    try:
        if suffix in _TIFF and is_geotiff(path):
            image, stored, place = read_geotiff(path, name, config.key, config.resolution)
            array = np.rot90(image, -1)
        elif suffix in _IMAGE:
            array = _read_image(path, name, config.key)
        else:
            array, stored = _read_numpy(path, name, config.key)
    except ConfigError:
        raise
    except Exception as error:  # readers may raise anything for a damaged file
        text = " ".join(str(error).split())[:200]
        raise _error("path", f"{name} cannot be read: {text or type(error).__name__}") from error
    if named is not None:
        stored = named.resolution
        if named.unmeasured is not None:
            array = np.where(array == named.unmeasured, np.nan, array)
    resolution = stored if place is not None else config.resolution or stored
    if resolution is None:
        text = f"{name} does not contain its metres per pixel"
        raise _error("resolution", f"{text}; set it here, or as resolution_m in an NPZ file")
    return RasterMap(name, _to_float(array, name), resolution, place)


def _error(key: str, text: str) -> ConfigError:
    return ConfigError(f"sensor.simulation.raster.{key}: {text}")


def decode_image(path: Path) -> Array | None:
    """Return an image as OpenCV decodes it, [row, column] or [row, column, band]; None if damaged.

    The values and the order of bands are OpenCV's: blue, green, red. Raises OSError.
    """
    data = np.frombuffer(path.read_bytes(), np.uint8)
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the caller reports damage
    try:
        # Decoded from memory: cv2.imread cannot open every name on every system.
        return cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if data.size else None
    finally:
        cv2.utils.logging.setLogLevel(level)


def _read_image(path: Path, name: str, key: str | None) -> Array:
    _refuse_key(key, name)
    image = decode_image(path)
    if image is None:
        raise _error("path", f"{name} is not a readable image")
    if image.ndim == 3 and image.shape[2] > 1:
        raise _error("path", f"{name} has {image.shape[2]} bands; use an image with a single band")
    return np.rot90(image.reshape(image.shape[:2]), -1)  # x = column, y = last row - row


def _read_numpy(path: Path, name: str, key: str | None) -> tuple[Array, float | None]:
    """Return the array, and `resolution_m` of an NPZ file or None."""
    # numpy does not close a damaged file that it opened itself.
    with path.open("rb") as stream:
        file = np.load(stream, allow_pickle=False)
        if isinstance(file, np.ndarray):
            _refuse_key(key, name)
            return file, None
        if key is not None and key not in file.files:
            raise _error("key", f"{name} has no array {key!r}; choose from {', '.join(file.files)}")
        resolution = None
        if "resolution_m" in file:
            stored = np.asarray(file["resolution_m"])
            is_number = stored.size == 1 and stored.dtype.kind in "iuf"
            resolution = float(stored.item()) if is_number else math.nan
            if not 0 < resolution < math.inf:
                raise _error("resolution", f"resolution_m of {name} must be a number above 0")
        return _largest_2d(file, name) if key is None else file[key], resolution


def _refuse_key(key: str | None, name: str) -> None:
    if key is not None:
        raise _error("key", f"{name} is not an NPZ file and has no keys; set it to null")


def _largest_2d(file: Mapping[str, Array], name: str) -> Array:
    arrays = []
    for key in file:
        with suppress(ValueError):  # skip object arrays: unpickling would run code
            arrays.append(file[key])
    maps = [array for array in arrays if array.ndim == 2]
    if not maps:
        raise _error("path", f"{name} has no 2-D array; it has {', '.join(file)}")
    return max(maps, key=lambda array: array.size)


def _to_float(array: Array, name: str) -> npt.NDArray[np.float32]:
    if array.ndim != 2 or not array.size:
        raise _error("path", f"{name} has shape {array.shape}; use a 2-D array")
    if array.dtype.kind not in "biuf":
        raise _error("path", f"{name} contains {array.dtype}; use real numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        values = array.astype(np.float32)
    values[~np.isfinite(values)] = np.nan
    if np.isnan(values).all():
        raise _error("path", f"{name} has no measured pixel (all are NaN)")
    if np.nanmin(values) == np.nanmax(values):
        raise _error("path", f"{name} has the same value everywhere, {np.nanmin(values):g}")
    return values


def admissible_corners(measured: Mask, window: tuple[int, int]) -> Mask:
    """Return where a fully measured window (P, Q) can start, [X - P + 1, Y - Q + 1] bool.

    `measured` is [X, Y] bool.
    """
    p, q = window
    total = cv2.integral((~measured).view(np.uint8))  # gaps before each pixel on both axes
    return (total[p:, q:] - total[:-p, q:] - total[p:, :-q] + total[:-p, :-q]) == 0


def cut_strips(counts: Indices, window: int) -> tuple[tuple[int, int], float]:
    """Cut an axis into three strips whose numbers of windows approximate `SHARES`.

    Args:
        counts: number of admissible windows that start at each pixel, [length - window + 1].
        window: window length along the axis [pixels].

    Returns:
        Two cuts a, b for the strips [0, a), [a, b), [b, length), and a score: the smallest ratio
        of a strip's number of windows to its share. The score is 0 if a strip has no window.
    """
    length = len(counts) + window - 1
    cumulative = np.concatenate(([0], np.cumsum(counts)))
    cut = np.arange(length + 1)
    begun = cumulative[np.minimum(cut, len(counts))]  # windows that start before each cut
    ended = cumulative[np.clip(cut - window + 1, 0, len(counts))]  # windows that end before it
    # For a given a, a larger b moves windows from the third to the second strip. The best b is
    # where their ratios of number to share cross, or the pixel before.
    balance = ended / SHARES[1] + begun / SHARES[2]
    cross = np.searchsorted(balance, begun / SHARES[1] + cumulative[-1] / SHARES[2])
    second = np.clip(np.stack((cross - 1, cross)), 0, length)
    score = np.minimum(
        (ended[second] - begun[cut]) / SHARES[1], (cumulative[-1] - begun[second]) / SHARES[2]
    )
    score = np.minimum(score, ended[cut] / SHARES[0])
    best = np.unravel_index(int(score.argmax()), score.shape)
    return (int(best[1]), int(second[best])), max(0.0, float(score[best]))


def split_map(measured: Mask, window: tuple[int, int]) -> dict[str, tuple[slice, slice]] | None:
    """Return the strip of the map for each split.

    The map is cut across the axis that leaves more windows, usually the longer axis. Returns None
    if a split has no window.
    """
    admissible = admissible_corners(measured, window)
    if not admissible.any():
        return None
    cuts = [cut_strips(admissible.sum(1 - axis), window[axis]) for axis in (0, 1)]
    axis = 0 if cuts[0][1] >= cuts[1][1] else 1
    (first, second), score = cuts[axis]
    if score == 0:
        return None
    along = [slice(*ends) for ends in pairwise((0, first, second, measured.shape[axis]))]
    strips = [(each, slice(None)) if axis == 0 else (slice(None), each) for each in along]
    return dict(zip(SPLITS, strips, strict=True))


@dataclass(frozen=True)
class RasterWindows:
    """One split's part of a measured map, and the windows in this part."""

    values: npt.NDArray[np.float32]
    """Values in the split's strip, [pixels along x, pixels along y]."""
    corners: Indices
    """First pixel (x, y) of each admissible window in the strip, [windows, 2]."""
    side: tuple[float, float]
    """Extent of a window, x_dim × y_dim [pixels]; may be fractional."""
    pixels: tuple[int, int]
    """Number of whole pixels (P, Q) that a window touches."""
    place: Place | None
    """Location of the whole map; None if the file has no location."""


def find_windows(config: Config, split: str) -> RasterWindows:
    """Read the map and list the windows of x_dim × y_dim metres for a split.

    Areas that are listed together have the same splits, which hold windows of the largest sides.
    The split `deployment` may use the whole map, and with `raster.whole` all may. Raises
    ConfigError if the file cannot be read, or is too small or too coarse for the windows.
    """
    settings = config.sensor.simulation.raster
    raster = read_raster(settings)
    check_threshold(raster, settings.threshold)
    extent = (config.environment.x_dim, config.environment.y_dim)
    side = (extent[0] / raster.resolution, extent[1] / raster.resolution)
    pixels = _pixels(raster, extent)
    if min(pixels) < 2:
        text = f"{raster.name} has pixels of {raster.resolution:g} m, too coarse for a window of "
        raise _error("resolution", f"{text}{_metres(extent)}, which must be at least 2 x 2 pixels")
    strip: tuple[slice, slice] = (slice(None), slice(None))
    if split != DEPLOYMENT and not settings.whole:
        largest = config.largest_sides
        strips = split_map(raster.measured, _pixels(raster, largest))
        if strips is None:
            raise _too_small(raster, largest, config.experiment.constraints.spacing)
        strip = strips[split]
    admissible = admissible_corners(raster.measured[strip], pixels)
    if not admissible.any():
        text = f"{raster.name} covers {_covered(raster)} and has no measured window of "
        advice = "use a larger map, or lower environment.x_dim and y_dim"
        if split == DEPLOYMENT:
            advice = "use a larger map; x_dim and y_dim must match the team's training"
        raise _error("path", f"{text}{_metres(extent)}; {advice}")
    corners = np.argwhere(admissible)
    if len(corners) > MAX_WINDOWS:
        corners = corners[np.linspace(0, len(corners) - 1, MAX_WINDOWS).astype(np.int64)]
    return RasterWindows(raster.values[strip].copy(), corners, side, pixels, raster.place)


def check_threshold(raster: RasterMap, threshold: float | str) -> None:
    """Raise a ConfigError if a threshold cannot divide the values of a map."""
    values = raster.values
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if isinstance(threshold, str) and bool(np.isin(values[raster.measured], (low, high)).all()):
        raise _error(
            "threshold",
            f"{threshold} is a percentile, but {raster.name} has only the values {low:g} and "
            f"{high:g}; set a number between them, such as {(low + high) / 2:g}",
        )
    if not isinstance(threshold, str) and not low <= threshold < high:
        text = f"must divide the values of {raster.name}, {low:g} to {high:g}"
        raise _error("threshold", f"{threshold:g} {text}")


def _pixels(raster: RasterMap, extent: tuple[float, float]) -> tuple[int, int]:
    """Return the number of pixels that a window touches along both axes."""
    x, y = (math.ceil(side / raster.resolution - 1e-9) for side in extent)
    return x, y


def _metres(extent: tuple[float, float]) -> str:
    return f"{extent[0]:g} x {extent[1]:g} m"


def _covered(raster: RasterMap) -> str:
    rows, cols = raster.values.shape
    extent = _metres((rows * raster.resolution, cols * raster.resolution))
    return f"{extent} ({raster.measured.mean():.0%} measured)"


def _too_small(raster: RasterMap, extent: tuple[float, float], least: float) -> ConfigError:
    ratio = extent[1] / extent[0]
    # Bisect the largest number of pixels along x: wherever a window fits, smaller windows fit.
    low, high = 0, math.ceil(extent[0] / raster.resolution)
    while high - low > 1:
        middle = (low + high) // 2
        window = (max(2, middle), max(2, math.ceil(middle * ratio - 1e-9)))
        fits = split_map(raster.measured, window) is not None
        low, high = (middle, high) if fits else (low, middle)
    advice = "no part of it is large enough"
    fit = low * raster.resolution
    fit_x, fit_y = (math.floor(10 * side + 1e-6) / 10 for side in (fit, fit * ratio))
    if low > 1 and min(fit_x, fit_y) >= least:
        advice = (
            f"lower environment.x_dim and y_dim to {fit_x:g} x {fit_y:g} m, or, for a trained "
            "team, use a larger map (three measured windows must fit side by side), or set "
            "sensor.simulation.raster.whole=true to fly windows of the whole map"
        )
    return _error(
        "path",
        f"{raster.name} covers {_covered(raster)}, too little for fully measured windows of "
        f"{_metres(extent)} in separate parts for {', '.join(SPLITS)}; {advice}",
    )
