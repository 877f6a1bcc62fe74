"""Messages between UAVs, as bytes.

A message is a header, a body, and the CRC-32 of both; all numbers are little-endian. The move of a
message counts from 0, the first reading. `Inbox` drops and counts messages that are damaged,
foreign, late, or doubles.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Place = tuple[int, int, int]
"""Lattice indices (x, y, z)."""
Bits = npt.NDArray[np.bool_]

VERSION = 1
_MAGIC = b"UM"
_HEADER = struct.Struct("<2sBBQBHd")  # magic, version, kind, mission, sender, move, time
_CHECKSUM = struct.Struct("<I")
_PLACES = struct.Struct("<6H")
_READING = struct.Struct("<5H")  # place, rows, columns
_POSITION_KIND, _READING_KIND = 1, 2
_NO_PLACE = (0xFFFF,) * 3


class Envelope(NamedTuple):
    """What every message states about itself."""

    mission: int
    """Number of the mission, 0 to 2**64 - 1."""
    sender: int
    """Index of the UAV, from 0."""
    move: int
    """Number of moves that the sender has made."""
    time: float
    """Time of sending by the sender's clock [s]."""


@dataclass(frozen=True)
class Position:
    """Where a UAV is and where it flies next; the radio range of the mission never cuts it."""

    envelope: Envelope
    place: Place
    next: Place | None = None
    """Next place; None while the sender has not decided."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A reading and the place where it was taken."""

    envelope: Envelope
    place: Place
    bits: Bits
    """Whether each cell of the footprint reads as region of interest, [rows, columns]; no rows if
    the camera gave no frame."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reading):
            return NotImplemented
        same = self.envelope == other.envelope and self.place == other.place
        return same and np.array_equal(self.bits, other.bits)

    __hash__ = None  # type: ignore[assignment]


Message = Position | Reading


class DamagedError(ValueError):
    """Bytes that are not a message of this version."""


def encode(message: Message) -> bytes:
    """Return a message as bytes."""
    if isinstance(message, Position):
        kind, body = _POSITION_KIND, _PLACES.pack(*message.place, *(message.next or _NO_PLACE))
    else:
        packed = np.packbits(message.bits).tobytes()
        kind, body = _READING_KIND, _READING.pack(*message.place, *message.bits.shape) + packed
    content = _HEADER.pack(_MAGIC, VERSION, kind, *message.envelope) + body
    return content + _CHECKSUM.pack(zlib.crc32(content))


def decode(data: bytes) -> Message:
    """Return the message in `data`. Raises DamagedError if there is none of this version."""
    content, end = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(content) < _HEADER.size or _CHECKSUM.pack(zlib.crc32(content)) != end:
        raise DamagedError
    magic, version, kind, *fields = _HEADER.unpack_from(content)
    body = content[_HEADER.size :]
    if (magic, version) != (_MAGIC, VERSION):
        raise DamagedError
    envelope = Envelope(*fields)
    if kind == _POSITION_KIND and len(body) == _PLACES.size:
        x, y, z, *following = _PLACES.unpack(body)
        goal = tuple(following)
        return Position(envelope, (x, y, z), None if goal == _NO_PLACE else goal)
    if kind == _READING_KIND and len(body) >= _READING.size:
        x, y, z, rows, columns = _READING.unpack_from(body)
        packed = np.frombuffer(body, np.uint8, offset=_READING.size)
        if len(packed) == -(-rows * columns // 8):
            bits = np.unpackbits(packed, count=rows * columns).view(np.bool_)
            return Reading(envelope, (x, y, z), bits.reshape(rows, columns))
    raise DamagedError


class Inbox:
    """Messages that a UAV has accepted, by sender and move.

    Args:
        mission: number of the mission.
        uav: index of the receiving UAV.
        team: number of UAVs.
        shape: number of places of the lattice, (X, Y, Z).

    Attributes:
        positions: newest position of each UAV, by sender.
        dropped: number of dropped messages by reason: `damaged`, `foreign`, `late` and `double`.
    """

    def __init__(self, mission: int, uav: int, team: int, shape: tuple[int, ...]) -> None:
        self._mission, self._uav, self._team, self._shape = mission, uav, team, shape
        self._readings: dict[tuple[int, int], Reading] = {}
        self._arrived: set[tuple[int, int]] = set()
        self._announced: dict[tuple[int, int], Place] = {}
        self.positions: dict[int, Position] = {}
        self.dropped: Counter[str] = Counter()

    def put(self, data: bytes, move: int) -> None:
        """Accept or drop a message.

        Readings of moves before `move` are late, and positions older than the sender's newest.
        """
        try:
            message = decode(data)
        except DamagedError:
            self.dropped["damaged"] += 1
            return
        if reason := self._find_problem(message, move):
            self.dropped[reason] += 1
            return
        key = message.envelope.sender, message.envelope.move
        if isinstance(message, Reading):
            self._readings[key] = message
            return
        self._arrived.add(key)
        if message.next is not None:
            self._announced[key] = message.next
        self.positions[key[0]] = message

    def _find_problem(self, message: Message, move: int) -> str | None:
        mission, sender, sent, _ = message.envelope
        if mission != self._mission or sender >= self._team or sender == self._uav:
            return "foreign"
        places = message.place, getattr(message, "next", None) or message.place
        if any(k >= size for place in places for k, size in zip(place, self._shape, strict=True)):
            return "foreign"
        key, newest = (sender, sent), self.positions.get(sender)
        if isinstance(message, Reading):
            return "late" if sent < move else "double" if key in self._readings else None
        if newest is not None and sent < newest.envelope.move:
            return "late"
        seen = key in self._announced or (message.next is None and key in self._arrived)
        return "double" if seen else None

    def has_arrived(self, sender: int, move: int) -> bool:
        """Return whether a UAV is known to have made `move` moves, or more."""
        newest = self.positions.get(sender)
        return newest is not None and newest.envelope.move >= move

    def announced(self, sender: int, move: int) -> Place | None:
        """Return the next place that a UAV announced after `move` moves, if known."""
        return self._announced.get((sender, move))

    def reading(self, sender: int, move: int) -> Reading | None:
        """Return the reading that a UAV took after `move` moves, if it was heard."""
        return self._readings.get((sender, move))

    def forget(self, move: int) -> None:
        """Release what belongs to moves before `move`."""
        self._readings = {key: kept for key, kept in self._readings.items() if key[1] >= move}
        self._arrived = {key for key in self._arrived if key[1] >= move}
        self._announced = {key: kept for key, kept in self._announced.items() if key[1] >= move}
