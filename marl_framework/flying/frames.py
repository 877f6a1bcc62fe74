"""Frames of a camera: image files in a folder, or a video stream."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from marl_framework.config.errors import ConfigError
from marl_framework.config.flying import CameraConfig
from marl_framework.config.geography import Array, Place, quiet_rasterio
from marl_framework.flying.protocols import Clock, Status
from marl_framework.mission.terrains.raster_file import decode_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".npy")
"""File names of images; an NPY file has [row, column] or [row, column, band]."""
FOLDER, STREAM = "folder:", "stream:"
_ATTITUDE = ("roll", "pitch", "yaw")
_NORTH = 1e-4  # step to the north that gives its direction on a map [degrees]
_AGAIN = 1.0  # until a stream that ended is opened again [s]


class UnusableFrameError(ValueError):
    """A frame that gives no reading; the text is the reason, in a word or two."""


@contextmanager
def counting(ignored: Counter[str]) -> Iterator[None]:
    """Count frames that give no reading, by reason."""
    try:
        yield
    except UnusableFrameError as error:
        ignored[str(error)] += 1


class Pose(NamedTuple):
    """Position and attitude of a camera on a flat map."""

    x: float
    y: float
    """Coordinates on the map [m]; y points along the map's columns, to the north."""
    altitude: float
    """Height above the ground [m]."""
    roll: float = 0.0
    """Turn about the image's upward axis, right side down [degrees]."""
    pitch: float = 0.0
    """Turn about the image's rightward axis, upper side up [degrees]."""
    yaw: float = 0.0
    """Direction of the image's upper side, clockwise from the map's y axis [degrees]."""

    @property
    def tilt(self) -> float:
        """Angle between the optical axis and the vertical [degrees]."""
        cosines = math.cos(math.radians(self.roll)) * math.cos(math.radians(self.pitch))
        return math.degrees(math.acos(max(-1.0, min(1.0, cosines))))


class Frame(NamedTuple):
    """An image, and when and where it was taken."""

    image: Path | Array
    """File of the image, or the image as OpenCV decodes it."""
    facts: dict[str, float]
    """Time, place and attitude, as in the JSON files of a folder."""

    def pose(self, place: Place | None) -> Pose:
        """Return the camera's pose on a map at `place`, which frames in degrees require.

        Raises UnusableFrameError.
        """
        facts = self.facts
        altitude, (roll, pitch, yaw) = facts["altitude"], (facts[name] for name in _ATTITUDE)
        if "x" in facts:
            return Pose(facts["x"], facts["y"], altitude, roll, pitch, yaw)
        if place is None:
            raise UnusableFrameError("unknown location of the map")
        longitude, latitude = facts["longitude"], facts["latitude"]
        ends = np.array([(longitude, latitude), (longitude, latitude + _NORTH)])
        try:
            (x, y), (north_x, north_y) = place.metres(ends).tolist()
        except Exception:  # PROJ has errors of its own, and the UAV must fly on
            raise UnusableFrameError("outside the map's coordinate system") from None
        meridian = math.degrees(math.atan2(north_x - x, north_y - y))
        return Pose(x, y, altitude, roll, pitch, yaw + meridian)


class FrameFolder:
    """Frames that appear in a folder: `NAME.json` beside an image `NAME.jpg`; see `SUFFIXES`.

    The JSON file must appear complete and after its image: write it under another name, rename it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, set[str]()

    def new(self, ignored: Counter[str]) -> Iterator[Frame]:
        """Yield each frame once, by name; count those that cannot be read."""
        for path in sorted(self._folder.glob("*.json")):
            if path.name not in self._seen:
                self._seen.add(path.name)
                with counting(ignored):
                    yield Frame(_image_of(path), _read_facts(path))


def _image_of(path: Path) -> Path:
    for suffix in SUFFIXES:
        for ending in (suffix, suffix.upper()):  # cameras write .JPG
            if (image := path.with_suffix(ending)).is_file():
                return image
    raise UnusableFrameError("no image")


def _read_facts(path: Path) -> dict[str, float]:
    try:
        content: Any = json.loads(path.read_bytes())
        names = ("x", "y") if "x" in content else ("latitude", "longitude")
        facts = {name: float(content[name]) for name in ("time", *names, "altitude", *_ATTITUDE)}
        if all(map(math.isfinite, facts.values())):
            return facts
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    raise UnusableFrameError("incomplete JSON")


def read_image(source: Path | Array) -> Array:
    """Return a frame's image as [row, column, band], red first. Raises UnusableFrameError."""
    suffix = source.suffix.lower() if isinstance(source, Path) else ""
    image: Any = source
    try:
        if isinstance(source, Path):
            image = _READERS.get(suffix, decode_image)(source)
    except Exception:  # readers may raise anything for a damaged file
        image = None
    known = isinstance(image, np.ndarray) and image.dtype.kind in "uif"
    if not known or image.ndim not in (2, 3) or not image.size:
        raise UnusableFrameError("unreadable image")
    bands: Array = image.reshape(*image.shape[:2], -1)
    swapped = suffix not in _READERS and bands.shape[2] >= 3
    return bands[..., [2, 1, 0, *range(3, bands.shape[2])]] if swapped else bands


def _read_tiff(path: Path) -> Array | None:
    """Return a TIFF image; OpenCV takes a fourth band for opacity, and drops separate bands."""
    try:
        import rasterio
    except ImportError:
        image = decode_image(path)
        return image if image is None or image.ndim == 2 else None
    with quiet_rasterio(), rasterio.open(path) as file:
        bands: Array = file.read()
        return np.moveaxis(bands, 0, -1)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": np.load,
    ".tif": _read_tiff,
    ".tiff": _read_tiff,
}
"""Readers that keep the order of bands; OpenCV reads all other files, blue first."""


class FrameStream:
    """The newest frame of a stream that OpenCV reads, at an address or in a file; `close` it.

    A thread reads all frames, so that old ones do not queue. If the stream ends, it is opened
    again. `status` returns the telemetry of the vehicle that carries the camera; its newest value
    counts, as frames are taken at rest. Raises ConfigError if the stream cannot be opened.
    """

    def __init__(
        self, url: str, settings: CameraConfig, status: Callable[[], Status], clock: Clock
    ) -> None:
        self._url, self._settings, self._status, self._clock = url, settings, status, clock
        self._newest: tuple[float, Array] | None = None
        self._end = threading.Event()
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # reported below
        self._video = cv2.VideoCapture(url)
        if not self._video.isOpened():
            raise ConfigError(f"--camera {STREAM}{url}: cannot be opened; give a video stream")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def new(self, ignored: Counter[str]) -> Iterator[Frame]:
        """Yield the newest frame once, or count it if its pose is unknown."""
        newest, self._newest = self._newest, None
        if newest is None:
            return
        status = self._status()
        if status.position is None or status.attitude is None:
            ignored["unknown pose"] += 1
            return
        facts = dict(zip(("x", "y", "altitude"), status.position, strict=True))
        facts |= dict(zip(_ATTITUDE, status.attitude, strict=True)) | {"time": newest[0]}
        if self._settings.gimbal:
            facts |= {"roll": 0.0, "pitch": 0.0}
        yield Frame(newest[1], facts)

    def close(self) -> None:
        """Stop reading; a read that never returns ends with the process."""
        self._end.set()
        self._thread.join(_AGAIN)

    def _run(self) -> None:
        while not self._end.is_set():
            arrived, image = self._video.read()
            if arrived:
                self._newest = self._clock.now() - self._settings.latency, image
            else:
                self._end.wait(_AGAIN)
                self._video.open(self._url)
        self._video.release()
