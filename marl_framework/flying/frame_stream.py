"""Frames of a video stream, with the position and attitude of the vehicle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import cv2

from marl_framework.config.errors import ConfigError
from marl_framework.config.flying import CameraConfig
from marl_framework.config.geography import Array
from marl_framework.flying.frame_files import Frame, UnusableFrameError
from marl_framework.flying.protocols import Clock, Status

STREAM = "stream:"
_AGAIN = 1.0  # until a stream that ended is opened again [s]


class FrameStream:
    """The newest frame of a stream that OpenCV reads; `close` it.

    A thread reads all frames, so that old ones do not queue. If the stream ends, it is opened
    again. A frame is as old as `CameraConfig.latency` when it arrives.

    `url` is the address or file of the stream. `status` returns the telemetry of the vehicle that
    carries the camera; its newest value counts, as frames are taken at rest. Raises ConfigError if
    the stream cannot be opened.
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

    def new(self) -> Iterator[Frame | UnusableFrameError]:
        """Yield the newest frame, if it has not been yielded yet."""
        newest, self._newest = self._newest, None
        if newest is None:
            return
        time, image = newest
        status = self._status()
        if status.position is None or status.attitude is None:
            yield UnusableFrameError("unknown pose")
            return
        x, y, altitude = status.position
        roll, pitch, yaw = status.attitude
        if self._settings.gimbal:
            roll = pitch = 0.0
        facts = {"time": time, "x": x, "y": y, "altitude": altitude}
        yield Frame(image, {**facts, "roll": roll, "pitch": pitch, "yaw": yaw})

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
