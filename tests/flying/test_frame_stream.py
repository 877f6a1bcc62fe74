"""Frames of a video stream give the cells of the map under the vehicle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.flying.frame_camera import FrameCamera, open_camera
from marl_framework.flying.frames import Pose
from marl_framework.flying.protocols import Status
from marl_framework.flying.simulated import SimulatedClock
from tests.flying.test_frame_camera import (
    GOOD,
    PLACE,
    cells_of,
    config_with,
    environment_of,
    image_of,
    random_map,
)


class Posed:
    """A vehicle of which only the telemetry is used."""

    def __init__(self, pose: Pose | None) -> None:
        position = None if pose is None else pose[:3]
        attitude = None if pose is None else pose[3:]
        self.now = Status(0.0, position, 1.0, attitude=attitude)

    def status(self) -> Status:
        return self.now

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a camera calls {name}")


@contextmanager
def streamed(
    folder: Path, image: np.ndarray, pose: Pose | None, config: Config
) -> Iterator[tuple[Callable[[], Any], SimulatedClock, FrameCamera]]:
    """Yield a function that takes readings of a stream which shows one image again and again."""
    size, clock = image.shape[1::-1], SimulatedClock()
    writer = cv2.VideoWriter(str(folder / "f.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 30, size)
    for _ in range(3):
        writer.write(cv2.cvtColor(image, cv2.COLOR_GRAY2BGR))
    writer.release()
    environment, spec = environment_of(config), f"stream:{folder / 'f.avi'}"
    with open_camera(spec, environment, None, clock, Posed(pose)) as camera:

        def take() -> Any:
            """Return the reading of the next frame; None if it was ignored."""
            seen, end = camera.ignored.total(), time.monotonic() + 30
            while (bits := camera.take(PLACE, 0)) is None and camera.ignored.total() == seen:
                assert time.monotonic() < end, "no frame"
            return bits

        yield take, clock, camera


def test_a_stream_gives_the_cells_of_the_map(tmp_path: Path) -> None:
    config = config_with()
    with streamed(tmp_path, image_of(config, GOOD), GOOD, config) as (take, clock, camera):
        assert take() is None  # taken before the arrival, as it has come late
        clock.advance(config.flying.camera.latency)
        while (bits := take()) is None:  # frames that had arrived before
            pass
        assert set(camera.ignored) == {"before arrival"}
    assert np.array_equal(bits, random_map(config)[cells_of(environment_of(config), PLACE)])


@pytest.mark.parametrize(
    ("pose", "camera", "reason"),
    [
        (None, {}, "unknown pose"),
        (GOOD._replace(roll=30.0), {}, "tilt"),
        (GOOD._replace(roll=30.0, pitch=20.0), {"gimbal": True}, None),
    ],
)
def test_a_stream_is_where_its_vehicle_is(
    tmp_path: Path, pose: Pose | None, camera: dict[str, Any], reason: str | None
) -> None:
    config = config_with(latency=0.0, **camera)
    image = image_of(config, GOOD._replace(roll=0.0, pitch=0.0))
    with streamed(tmp_path, image, pose, config) as (take, _, frames):
        bits = take()
    if reason is None:
        assert np.array_equal(bits, random_map(config)[cells_of(environment_of(config), PLACE)])
    else:
        assert bits is None
        assert set(frames.ignored) == {reason}


@pytest.mark.parametrize("spec", ["frames", "folder:", "folder:missing", "stream:missing.avi"])
def test_an_unknown_camera_is_refused(spec: str) -> None:
    environment, clock = environment_of(config_with()), SimulatedClock()
    with (
        pytest.raises(ConfigError, match="--camera"),
        open_camera(spec, environment, None, clock, Posed(GOOD)),
    ):
        pass
