"""What a pilot needs of a UAV: a vehicle, a camera and a radio."""

from __future__ import annotations

from typing import Protocol

from marl_framework.flying.messages import Bits, Place


class Vehicle(Protocol):
    """Flies between places of the lattice."""

    def go_to(self, place: Place) -> None:
        """Fly to a place on a straight way; return at once."""
        ...

    def arrived(self) -> bool:
        """Return whether the vehicle is at rest at the last place of `go_to`, or at its start."""
        ...


class Camera(Protocol):
    """Takes readings."""

    def take(self, place: Place, move: int) -> Bits:
        """Return the reading at a place, after `move` moves; see `messages.Reading.bits`."""
        ...


class Radio(Protocol):
    """Carries messages between the UAVs of a team."""

    def send(self, data: bytes) -> None:
        """Send a message to all others."""
        ...

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived since the last call, in order."""
        ...


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> float:
        """Return the time [s]."""
        ...
