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
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Place = tuple[int, int, int]
"""Lattice indices (x, y, z)."""
Bits = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

VERSION = 1
_MAGIC = b"UM"
_HEADER = struct.Struct("<2sBBQBHd")  # magic, version, kind, mission, sender, move, time
_CHECKSUM = struct.Struct("<I")
_PLACES = struct.Struct("<6H")
_GRID = struct.Struct("<5H")  # place, rows, columns
_POSITION, _READING, _PLAN = 1, 2, 3  # kinds
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


@dataclass(frozen=True, eq=False)
class Plan:
    """What a UAV intends, for planners that share it."""

    envelope: Envelope
    place: Place
    left: Floats
    """Share of the entropy that its next readings will leave around each lattice position, [X, Y]
    float32."""


Message = Position | Reading | Plan
Kind = TypeVar("Kind", Position, Reading, Plan)


class DamagedError(ValueError):
    """Bytes that are not a message of this version."""


def encode(message: Message) -> bytes:
    """Return a message as bytes."""
    match message:
        case Position():
            kind, body = _POSITION, _PLACES.pack(*message.place, *(message.next or _NO_PLACE))
        case Reading():
            kind, body = _READING, _GRID.pack(*message.place, *message.bits.shape)
            body += np.packbits(message.bits).tobytes()
        case Plan():
            kind, body = _PLAN, _GRID.pack(*message.place, *message.left.shape)
            body += message.left.astype("<f4").tobytes()
    content = _HEADER.pack(_MAGIC, VERSION, kind, *message.envelope) + body
    return content + _CHECKSUM.pack(zlib.crc32(content))


def decode(data: bytes) -> Message:
    """Return the message in `data`. Raises DamagedError if there is none of this version."""
    content, end = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(content) < _HEADER.size or _CHECKSUM.pack(zlib.crc32(content)) != end:
        raise DamagedError
    magic, version, kind, *fields = _HEADER.unpack_from(content)
    body, envelope = content[_HEADER.size :], Envelope(*fields)
    if (magic, version) != (_MAGIC, VERSION):
        raise DamagedError
    if kind == _POSITION and len(body) == _PLACES.size:
        x, y, z, *goal = _PLACES.unpack(body)
        following = None if tuple(goal) == _NO_PLACE else (goal[0], goal[1], goal[2])
        return Position(envelope, (x, y, z), following)
    if kind in (_READING, _PLAN) and len(body) >= _GRID.size:
        x, y, z, rows, columns = _GRID.unpack_from(body)
        cells, rest = rows * columns, body[_GRID.size :]
        if kind == _READING and len(rest) == -(-cells // 8):
            bits = np.unpackbits(np.frombuffer(rest, np.uint8), count=cells).view(np.bool_)
            return Reading(envelope, (x, y, z), bits.reshape(rows, columns))
        if kind == _PLAN and len(rest) == 4 * cells:
            left = np.frombuffer(rest, "<f4").astype(np.float32)
            return Plan(envelope, (x, y, z), left.reshape(rows, columns))
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
        self._messages: dict[tuple[type[Message], int, int], Message] = {}
        self.positions: dict[int, Position] = {}
        self.dropped: Counter[str] = Counter()

    def put(self, data: bytes, move: int) -> None:
        """Accept or drop a message of a UAV, for a receiver that has made `move` moves.

        Readings of earlier moves are late, plans before the move before, and positions older than
        the sender's newest.
        """
        try:
            message = decode(data)
        except DamagedError:
            self.dropped["damaged"] += 1
            return
        if reason := self._find_problem(message, move):
            self.dropped[reason] += 1
            return
        _, sender, sent, _ = message.envelope
        self._messages[type(message), sender, sent] = message
        if isinstance(message, Position):
            self.positions[sender] = message

    def _find_problem(self, message: Message, move: int) -> str | None:
        mission, sender, sent, _ = message.envelope
        places = [message.place]
        if isinstance(message, Position) and message.next is not None:
            places.append(message.next)
        outside = any(k >= n for place in places for k, n in zip(place, self._shape, strict=True))
        if mission != self._mission or sender >= self._team or sender == self._uav or outside:
            return "foreign"
        earlier = self._messages.get((type(message), sender, sent))
        if isinstance(message, Position):
            newest = self.positions.get(sender)
            oldest = -1 if newest is None else newest.envelope.move
            if isinstance(earlier, Position) and earlier.next is None:
                earlier = None if message.next is not None else earlier
        else:
            oldest = move - isinstance(message, Plan)
        return "late" if sent < oldest else None if earlier is None else "double"

    def has_arrived(self, sender: int, move: int) -> bool:
        """Return whether a UAV is known to have made `move` moves, or more."""
        newest = self.positions.get(sender)
        return newest is not None and newest.envelope.move >= move

    def get(self, kind: type[Kind], sender: int, move: int) -> Kind | None:
        """Return the message of a kind that a UAV sent after `move` moves, if it was heard."""
        message = self._messages.get((kind, sender, move))
        return message if isinstance(message, kind) else None

    def announced(self, sender: int, move: int) -> Place | None:
        """Return the next place that a UAV announced after `move` moves, if known."""
        message = self.get(Position, sender, move)
        return None if message is None else message.next

    def forget(self, move: int) -> None:
        """Release messages of moves before `move`."""
        self._messages = {key: kept for key, kept in self._messages.items() if key[2] >= move}
