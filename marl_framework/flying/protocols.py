"""What a pilot needs of a UAV: a vehicle, a camera and a radio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from marl_framework.flying.messages import Bits, Place


class Status(NamedTuple):
    """Newest telemetry of a vehicle."""

    time: float
    """When it was received, by the pilot's clock [s]."""
    position: tuple[float, float, float] | None
    """Coordinates on the lattice [m]; None without a position fix."""
    battery: float
    """Remaining charge, 0 to 1; NaN if it is unknown."""
    controlled: bool = True
    """Whether the vehicle follows this pilot: it is in the mode in which it takes its commands, or
    returns on its command."""
    landed: bool = False
    """Whether it is on the ground with its motors off."""
    attitude: tuple[float, float, float] | None = None
    """Roll, pitch and yaw of the body [degrees]; yaw counts clockwise from the y axis of the
    lattice. None if it is unknown."""


class Vehicle(Protocol):
    """Flies between places of the lattice; every command returns at once."""

    def take_off(self, place: Place) -> None:
        """Check, arm, take off, and fly to the first place at an altitude of its own."""

    def go_to(self, place: Place) -> None:
        """Fly to a place on a straight way."""

    def hold(self) -> None:
        """Stop and stay in the air."""

    def return_home(self) -> None:
        """Climb to an altitude of its own, fly home, land and switch off the motors.

        On the ground, only cancel the take-off.
        """

    def arrived(self) -> bool:
        """Return whether the vehicle is at rest at the last place of `take_off` or `go_to`."""

    def status(self) -> Status:
        """Return the newest telemetry."""


class Camera(Protocol):
    """Takes readings."""

    def take(self, place: Place, move: int) -> Bits | None:
        """Return the reading at a place, after `move` moves; see `messages.Reading.bits`.

        None means that no frame fits yet; the pilot asks again.
        """


class Radio(Protocol):
    """Carries messages between the UAVs of a team."""

    def send(self, data: bytes) -> None:
        """Send a message to all others."""

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived since the last call, in order."""


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> float:
        """Return the time [s]."""


Log = Callable[[dict[str, Any]], None]
"""Takes an entry of the record."""


class Hardware(NamedTuple):
    """What a pilot uses of a UAV."""

    vehicle: Vehicle
    camera: Camera
    radio: Radio
    clock: Clock
    log: Log
