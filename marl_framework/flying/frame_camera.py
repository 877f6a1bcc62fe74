"""Readings from frames: pixels become probabilities, and probabilities cells of flat ground."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from textwrap import shorten
from traceback import format_exception_only
from typing import NamedTuple, Protocol

import numpy as np
import torch
from kornia.geometry.calibration import distort_points
from kornia.geometry.conversions import quaternion_from_euler, quaternion_to_rotation_matrix
from kornia.geometry.linalg import transform_points
from kornia.geometry.transform import remap
from torch import Tensor
from torch.nn.functional import avg_pool2d

from marl_framework.config import geography
from marl_framework.config.errors import ConfigError
from marl_framework.config.flying import CameraConfig
from marl_framework.config.geography import Array
from marl_framework.config.model import Config
from marl_framework.config.parts import DETECTORS, make_part
from marl_framework.flying.frames import (
    FOLDER,
    STREAM,
    Frame,
    FrameFolder,
    FrameStream,
    Pose,
    UnusableFrameError,
    counting,
    read_image,
)
from marl_framework.flying.messages import Bits, Place
from marl_framework.flying.protocols import Clock, Vehicle
from marl_framework.mission.environment import MissionEnvironment

_KEY = "flying.camera.detector"
_MOST_SAMPLES = 8  # per cell and axis
_LONGEST = 100  # characters of a detector's error
_LONGEST_LOOK = 0.5  # at frames, after which no other is read in the same call [s]
# From east, north, up to north, east, down; from the body (forward, right, down) to the camera
# (right, down in the image, along the optical axis), which looks down.
_TO_NED = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, -1]], dtype=torch.float64)
_TO_CAMERA = torch.tensor([[0, 1, 0], [-1, 0, 0], [0, 0, 1]], dtype=torch.float64)


class Detector(Protocol):
    """Finds the region of interest in an image; created as `MyDetector(config)`."""

    def __call__(self, image: Array) -> Array:
        """Return P(region of interest) of each pixel, [H, W], of an image [H, W, bands]."""
        ...


class ThresholdDetector:
    """A limit of a band, or of the normalised difference (a - b) / (a + b) of two bands."""

    def __init__(self, config: Config) -> None:
        self._settings = config.flying.camera

    def __call__(self, image: Array) -> Array:
        """Return 1 or 0 for each pixel; NaN where the difference is undefined."""
        settings = self._settings
        if max(settings.bands) >= image.shape[2]:
            raise UnusableFrameError("missing band")
        first, *second = (image[..., band].astype(np.float32) for band in settings.bands)
        if second:
            with np.errstate(divide="ignore", invalid="ignore"):
                first = (first - second[0]) / (first + second[0])
        found = first > settings.threshold if settings.above else first < settings.threshold
        return np.where(np.isfinite(first), found, np.nan).astype(np.float32)


class Lens(NamedTuple):
    """A pinhole camera with radial distortion, as in OpenCV; pixel centres have whole numbers."""

    focal: float
    """Focal length [pixels]."""
    centre: tuple[float, float]
    """Principal point (column, row) [pixels]."""
    distortion: tuple[float, float] = (0.0, 0.0)
    """Coefficients k1 and k2 of Brown and Conrady's model."""

    @property
    def limit(self) -> float:
        """Square of the tangent up to which larger angles lie further from the centre."""
        k1, k2 = self.distortion
        roots = np.roots([5 * k2, 3 * k1, 1])
        real = roots[np.isreal(roots)].real
        return float(real[real > 0].min(initial=math.inf))


def make_lens(settings: CameraConfig, width: int, height: int) -> Lens:
    """Return the lens of images of `width` × `height` pixels."""
    focal, centre = settings.focal_length, settings.principal_point
    if focal is None:
        focal = width / 2 / math.tan(math.radians(settings.angle) / 2)
    middle = ((width - 1) / 2, (height - 1) / 2)
    return Lens(focal, middle if centre is None else centre, settings.distortion)


def project(pose: Pose, lens: Lens, points: Tensor) -> Tensor:
    """Return the pixels (column, row) of ground points; NaN where the lens cannot see.

    Points [m] are relative to the point below the camera, [P, 2] float32. Pixels are [P, 2]
    float32; they may lie outside the image.
    """
    angles = torch.tensor(pose[3:], dtype=torch.float64).deg2rad()
    turn = quaternion_to_rotation_matrix(torch.stack(quaternion_from_euler(*angles)))
    plane = _TO_CAMERA @ turn.mT @ _TO_NED  # from east, north, up to the camera
    plane = (plane * torch.tensor([1, 1, -pose.altitude])).float()
    depth = points @ plane[2, :2] + plane[2, 2]
    tangents = transform_points(plane[None], points[None])  # of the angles to the optical axis
    visible = (depth > 0) & (tangents[0].square().sum(-1) < lens.limit)
    (column, row), eye = lens.centre, torch.eye(3)[None]
    matrix = torch.tensor([[[lens.focal, 0, column], [0, lens.focal, row], [0, 0, 1]]])
    pixels = distort_points(tangents, matrix, torch.tensor([[*lens.distortion, 0, 0]]), eye)[0]
    return torch.where(visible[:, None], pixels, math.nan)


class FrameReader:
    """Reads cells of flat ground from frames.

    A cell is of interest where the mean of the detector's probability, at up to 8 × 8 points of the
    cell, is above 0.5. Frames in degrees require `place`, the location of the map on Earth.
    """

    def __init__(self, config: Config, place: geography.Place | None = None) -> None:
        self.settings = config.flying.camera
        name = self.settings.detector
        self._detect: Detector = make_part(DETECTORS, name, _KEY, config=config)
        self._cell, self._place = config.geometry.cell_size, place

    def pose(self, frame: Frame) -> Pose:
        """Return a frame's pose. Raises UnusableFrameError, also if the camera is tilted."""
        pose = frame.pose(self._place)
        if not pose.tilt <= self.settings.tilt_tolerance:
            raise UnusableFrameError("tilt")
        return pose

    def read(
        self, frame: Frame, pose: Pose, corner: tuple[float, float], shape: tuple[int, int]
    ) -> Bits:
        """Return whether each cell reads as region of interest, `shape`.

        `corner` is the lower left corner of the first cell [m]. Raises UnusableFrameError, also if
        a part of the cells is not in view.
        """
        probability = self._probability(read_image(frame.image))
        height, width = probability.shape
        lens = make_lens(self.settings, width, height)
        density = lens.focal * max(self._cell) / pose.altitude if pose.altitude > 0 else 1.0
        samples = min(max(1, math.ceil(density)), _MOST_SAMPLES)
        fine = [side / samples for side in self._cell]
        axes = [
            start - own + (torch.arange(cells * samples, dtype=torch.float64) + 0.5) * step
            for start, own, cells, step in zip(corner, pose[:2], shape, fine, strict=True)
        ]
        points = torch.cartesian_prod(*axes).float()
        pixels = project(pose, lens, points).view(1, len(axes[0]), len(axes[1]), 2)
        if not ((pixels >= 0) & (pixels <= torch.tensor([width - 1, height - 1]))).all():
            raise UnusableFrameError("view")
        columns, rows = pixels.unbind(-1)
        values = remap(probability[None, None], columns, rows, align_corners=True)
        cells = avg_pool2d(values, samples)[0, 0]
        if not ((cells >= 0) & (cells <= 1)).all():
            raise UnusableFrameError("undecided pixels")
        bits: Bits = (cells > 0.5).numpy()
        return bits

    def _probability(self, image: Array) -> Tensor:
        try:
            found = np.asarray(self._detect(image), np.float32)
        except UnusableFrameError:
            raise
        except Exception as error:  # a custom detector may raise anything, and the UAV must fly on
            text = shorten("".join(format_exception_only(error)), _LONGEST, placeholder=" …")
            raise UnusableFrameError(f"detector: {text}") from error
        if found.shape != image.shape[:2]:
            raise UnusableFrameError("detector: wrong shape")
        return torch.from_numpy(found)


class FrameCamera:
    """The camera of a UAV.

    Frames in degrees require `place`, the location of the mission's map on Earth. `clock` is that
    of the frames and of the pilot.

    Attributes:
        ignored: number of frames that gave no reading, by reason.
    """

    def __init__(
        self,
        frames: FrameFolder | FrameStream,
        environment: MissionEnvironment,
        place: geography.Place | None,
        clock: Clock,
    ) -> None:
        self._frames, self._reader = frames, FrameReader(environment.config, place)
        self._boxes, self._lattice = environment.camera.box_table.cpu(), environment.lattice
        self._cell, self._clock = environment.config.geometry.cell_size, clock
        self._move, self._arrival = -1, 0.0
        self.ignored: Counter[str] = Counter()

    def take(self, place: Place, move: int) -> Bits | None:
        """Return the reading of the first frame that fits; see `Camera`.

        A frame fits if it was taken after the first call for this move, near the place, with little
        tilt, and shows the whole footprint. Other frames are ignored.
        """
        if move != self._move:
            self._move, self._arrival = move, self._clock.now()
        end = self._clock.now() + _LONGEST_LOOK
        for frame in self._frames.new(self.ignored):
            with counting(self.ignored):
                return self._read(frame, place)
            if self._clock.now() > end:  # the pilot must send and hear; other frames come next
                break
        return None

    def _read(self, frame: Frame, place: Place) -> Bits:
        if frame.facts["time"] < self._arrival:
            raise UnusableFrameError("before arrival")
        pose = self._reader.pose(frame)
        metres = self._lattice.metres(torch.tensor(place)).tolist()
        if not math.dist(pose[:3], metres) <= self._reader.settings.position_tolerance:
            raise UnusableFrameError("place")
        row0, row1, col0, col1, *_ = self._boxes[place].tolist()
        corner = (row0 * self._cell[0], col0 * self._cell[1])
        return self._reader.read(frame, pose, corner, (row1 - row0, col1 - col0))


@contextmanager
def open_camera(
    spec: str,
    environment: MissionEnvironment,
    place: geography.Place | None,
    clock: Clock,
    vehicle: Vehicle,
) -> Iterator[FrameCamera]:
    """Open the camera that `--camera` describes: `folder:PATH`, or `stream:URL` on a vehicle.

    Raises ConfigError if `spec` or the detector is wrong, or the stream cannot be opened.
    """
    settings, (kind, colon, where) = environment.config.flying.camera, spec.partition(":")
    if kind + colon == STREAM:
        with closing(FrameStream(where, settings, vehicle.status, clock)) as stream:
            yield FrameCamera(stream, environment, place, clock)
        return
    if kind + colon != FOLDER or not where:
        raise ConfigError(f"--camera {spec}: unknown camera; use {FOLDER}PATH or {STREAM}URL")
    if not Path(where).is_dir():
        raise ConfigError(f"--camera {spec}: {where} is not a folder; create it")
    yield FrameCamera(FrameFolder(Path(where)), environment, place, clock)
