"""Section `flying`: the limits of UAVs that decide in the air."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from marl_framework.config import types

Seconds = Annotated[float, Field(gt=0, le=3600)]
Metres = Annotated[float, Field(gt=0, le=1000)]


class FlyingConfig(types.Section):
    """Limits of a pilot; beyond one of them the UAV holds, and returns if it lasts."""

    message_timeout: Seconds = 10.0
    """Longest wait for messages of the others, in addition to the slowest move [s]."""
    telemetry_timeout: Seconds = 2.0
    """Largest age of the vehicle's telemetry [s]."""
    camera_timeout: Seconds = 5.0
    """Longest wait for a frame [s]."""
    missed_frames: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of consecutive moves without a frame after which the UAV returns."""
    position_error: Metres = 3.0
    """Largest distance from the planned way [m]."""
    clock_error: Seconds = 1.0
    """Largest difference between the clocks of two UAVs, with the time of a message [s]."""
    min_battery: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Charge at which the UAV returns, 0 to 1."""
    longest_hold: Seconds = 20.0
    """Time after which a UAV that holds returns [s]."""
