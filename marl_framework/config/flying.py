"""Section `flying`: limits and cameras of UAVs that decide in the air."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from marl_framework.config import types

SIMULATED = "simulated"
"""Name of the vehicle and of the camera of a simulated world."""
RECORD = "flight.mcap"
"""Name of a flight's record in the run folder."""
Seconds = Annotated[float, Field(gt=0, le=3600)]
Metres = Annotated[float, Field(gt=0, le=1000)]


class CameraConfig(types.Section):
    """Lens and detector of the cameras, and the frames that become readings."""

    focal_length: types.Positive | None = None
    """Focal length [pixels]; null = from angle."""
    angle: types.Angle = 60.0
    """Opening angle across the width of the image, without distortion [degrees]."""
    principal_point: tuple[types.Pixel, types.Pixel] | None = None
    """Principal point, (column, row) [pixels]; null = middle of the image."""
    distortion: tuple[types.Distortion, types.Distortion] = (0.0, 0.0)
    """Radial distortion, coefficients k1 and k2 of OpenCV."""
    detector: types.Detector = "threshold"
    """threshold, or dotted path of a custom detector (see `flying.frame_camera`)."""
    bands: Annotated[tuple[types.Band, ...], Field(min_length=1, max_length=2)] = (0,)
    """Band that is compared with threshold, or two for the normalised difference; from 0."""
    threshold: types.Limit = 128.0
    """Limit of the band or of the normalised difference."""
    above: bool = True
    """Whether values above the threshold are of interest, else those below."""
    position_tolerance: Metres = 2.0
    """Largest distance between a frame's position and the place of its reading [m]."""
    latency: Annotated[float, Field(ge=0, le=60)] = 0.5
    """Age of the frames of a stream when they arrive [s]."""
    gimbal: bool = False
    """Whether a gimbal keeps the camera of a stream level, else it is fixed to the body."""
    tilt_tolerance: Annotated[float, Field(ge=0, le=60)] = 10.0
    """Largest angle between the optical axis and the vertical [degrees]."""


class FlyingConfig(types.Section):
    """Cameras, and limits of a pilot; beyond one the UAV holds, and returns if it lasts."""

    message_timeout: Seconds = 10.0
    """Silence after which another UAV is lost [s]."""
    telemetry_timeout: Seconds = 2.0
    """Largest age of the vehicle's telemetry [s]."""
    camera_timeout: Seconds = 5.0
    """Longest wait for a frame [s]."""
    missed_frames: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of consecutive moves without a frame after which the UAV returns."""
    position_error: Metres = 3.0
    """Largest distance from the planned way [m]."""
    clock_error: Seconds = 1.0
    """Largest difference between the clocks of two UAVs, and delay of a message [s]."""
    min_battery: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Charge at which the UAV returns, 0 to below 1."""
    longest_hold: Seconds = 20.0
    """Total time of holds in one move after which a UAV returns [s]."""
    camera: CameraConfig = CameraConfig()
