"""Frames in a folder: image files, each with a JSON file that states time, place and attitude."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Array, Place
from marl_framework.mission.terrains.raster_file import decode_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".npy")
"""File names of images; an NPY file has [row, column] or [row, column, band]."""
_FOLDER = "folder:"
_ATTITUDE = ("roll", "pitch", "yaw")
_NORTH = 1e-4  # step to the north that gives its direction on a map [degrees]


class UnusableFrameError(ValueError):
    """A frame that gives no reading; the text is the reason, in a word or two."""


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
    """Content of the JSON file."""

    @property
    def time(self) -> float:
        """When the frame was taken, by the pilot's clock [s]."""
        return self.facts["time"]

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


def frames_folder(spec: str) -> Path:
    """Return the folder of `--camera folder:PATH`. Raises ConfigError."""
    folder = Path(spec.removeprefix(_FOLDER))
    if not spec.startswith(_FOLDER) or spec == _FOLDER:
        raise ConfigError(f"--camera {spec}: unknown camera; use {_FOLDER}PATH or stream:URL")
    if not folder.is_dir():
        raise ConfigError(f"--camera {spec}: {folder} is not a folder; create it")
    return folder


class FrameFolder:
    """Frames that appear in a folder: `NAME.json` beside an image `NAME.jpg`; see `SUFFIXES`.

    The JSON file must appear complete and after its image: write it under another name, rename it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, set[str]()

    def new(self) -> Iterator[Frame | UnusableFrameError]:
        """Yield each frame once, by name; in place of a frame that cannot be read, its error."""
        for path in sorted(self._folder.glob("*.json")):
            if path.name not in self._seen:
                self._seen.add(path.name)
                try:
                    yield Frame(_image_of(path), _read_facts(path))
                except UnusableFrameError as error:
                    yield error


def _image_of(path: Path) -> Path:
    for suffix in SUFFIXES:
        if (image := path.with_suffix(suffix)).is_file():
            return image
    raise UnusableFrameError("no image")


def _read_facts(path: Path) -> dict[str, float]:
    try:
        content: Any = json.loads(path.read_bytes())
        names = ("x", "y") if "x" in content else ("latitude", "longitude")
        facts = {name: float(content[name]) for name in ("time", *names, "altitude", *_ATTITUDE)}
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        raise UnusableFrameError("incomplete JSON") from None
    if not all(map(math.isfinite, facts.values())):
        raise UnusableFrameError("incomplete JSON")
    return facts


def read_image(source: Path | Array) -> Array:
    """Return a frame's image as [row, column, band], red first. Raises UnusableFrameError."""
    raw = isinstance(source, Path) and source.suffix == ".npy"
    try:
        image: Any = source
        if isinstance(source, Path):
            image = np.load(source) if raw else decode_image(source)
    except Exception:  # readers may raise anything for a damaged file
        image = None
    if not isinstance(image, np.ndarray) or image.ndim not in (2, 3) or not image.size:
        raise UnusableFrameError("unreadable image")
    if image.dtype.kind not in "uif":
        raise UnusableFrameError("unreadable image")
    bands = image.reshape(*image.shape[:2], -1)
    swapped = not raw and bands.shape[2] >= 3
    return bands[..., [2, 1, 0, *range(3, bands.shape[2])]] if swapped else bands
