"""Messages between UAVs, as bytes.

A message is a header, a body, and the CRC-32 of both; all numbers are little-endian. The move of a
message counts from 0, the first reading. `Inbox` drops and counts messages that are damaged,
foreign, late, or doubles.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Place = tuple[int, int, int]
"""Lattice indices (x, y, z)."""
Bits = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

VERSION = 2
_MAGIC = b"UM"
_HEADER = struct.Struct("<2sBBQBHdI")  # magic, version, kind, mission, sender, move, time, number
_CHECKSUM = struct.Struct("<I")
_POSITION_BODY = struct.Struct("<6HBQ")  # place, next place, stage, lost UAVs as bits
_GRID = struct.Struct("<5H")  # place, rows, columns
_CAUTION = struct.Struct("<f")  # only if it is not 1
_POSITION, _READING, _PLAN = 1, 2, 3  # kinds
_NO_PLACE = (0xFFFF,) * 3
MOST_UAVS = 64
"""Largest team in flight: positions have one bit for each lost UAV."""


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
    number: int = 0
    """Sequence number among the messages of the sender."""


class Stage(IntEnum):
    """What a UAV does, as others need to know."""

    WAITING = 0  # for its take-off
    STARTING = 1  # on its way to its start
    FLYING = 2
    HOLDING = 3  # has stopped in the air, and may go on
    LEAVING = 4  # has stopped for good, and waits until it may return
    ABORTING = 5  # as LEAVING, and all others must leave, too
    RETURNING = 6
    LANDED = 7  # for good
    RECALLING = 8  # as RETURNING, and all others must leave, too

    @property
    def aborts(self) -> bool:
        """Whether all other UAVs must leave the mission."""
        return self in (Stage.ABORTING, Stage.RECALLING)

    @property
    def left(self) -> bool:
        """Whether the UAV takes no further part in the mission."""
        return self >= Stage.LEAVING


@dataclass(frozen=True)
class Position:
    """Where a UAV is and where it flies next; the radio range of the mission never cuts it."""

    envelope: Envelope
    place: Place
    next: Place | None = None
    """Next place; None while the sender has not decided."""
    stage: Stage = Stage.FLYING
    lost: frozenset[int] = frozenset()
    """UAVs that the sender has lost."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A reading and the place where it was taken."""

    envelope: Envelope
    place: Place
    bits: Bits
    """Whether each cell of the footprint reads as region of interest, [rows, columns]; no rows if
    the camera gave no frame."""
    caution: float = 1.0
    """Caution that its UAV has learned; see `sensor.model.adapt`."""


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
            lost = sum(1 << uav for uav in message.lost)
            goal = message.next or _NO_PLACE
            kind = _POSITION
            body = _POSITION_BODY.pack(*message.place, *goal, message.stage, lost)
        case Reading():
            kind, body = _READING, _GRID.pack(*message.place, *message.bits.shape)
            body += np.packbits(message.bits).tobytes()
            body += b"" if message.caution == 1 else _CAUTION.pack(message.caution)
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
    if kind == _POSITION and len(body) == _POSITION_BODY.size:
        x, y, z, i, j, k, stage, bits = _POSITION_BODY.unpack(body)
        if stage <= max(Stage):
            goal = None if (i, j, k) == _NO_PLACE else (i, j, k)
            lost = frozenset(uav for uav in range(bits.bit_length()) if bits >> uav & 1)
            return Position(envelope, (x, y, z), goal, Stage(stage), lost)
    if kind in (_READING, _PLAN) and len(body) >= _GRID.size:
        x, y, z, rows, columns = _GRID.unpack_from(body)
        cells, rest = rows * columns, body[_GRID.size :]
        packed, caution = rest[: -(-cells // 8)], rest[-(-cells // 8) :]
        if kind == _READING and len(packed) == -(-cells // 8):
            bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=cells).view(np.bool_)
            reading = Reading(envelope, (x, y, z), bits.reshape(rows, columns))
            if not caution:
                return reading
            if len(caution) == _CAUTION.size and 0 < (power := _CAUTION.unpack(caution)[0]) < 1:
                return replace(reading, caution=power)
        if kind == _PLAN and len(rest) == 4 * cells:
            left = np.frombuffer(rest, "<f4").astype(np.float32)
            return Plan(envelope, (x, y, z), left.reshape(rows, columns))
    raise DamagedError


class Inbox:
    """Messages that UAV `uav` of `team` UAVs has accepted; `shape` is the lattice's, (X, Y, Z).

    Attributes:
        positions: newest position of each UAV, by sender.
        dropped: number of dropped messages by reason: `damaged`, `foreign`, `late`, `double`,
            `impostor`.
        impostors: UAVs of which two positions contradict each other, and the receiver itself if
            another sender has its number.
    """

    def __init__(self, mission: int, uav: int, team: int, shape: tuple[int, ...]) -> None:
        self._mission, self._uav, self._team, self._shape = mission, uav, team, shape
        self._messages: dict[tuple[type[Message], int, int], Message] = {}
        self.positions: dict[int, Position] = {}
        self.dropped: Counter[str] = Counter()
        self.impostors: set[int] = set()

    def put(self, data: bytes, move: int) -> Message | None:
        """Return a message of a UAV if it is accepted, for a receiver that has made `move` moves.

        Readings of earlier moves are late, plans before the move before, and positions that were
        sent before the newest one.
        """
        try:
            message = decode(data)
        except DamagedError:
            self.dropped["damaged"] += 1
            return None
        if reason := self._find_problem(message, move):
            self.dropped[reason] += 1
            return None
        _, sender, sent, *_ = message.envelope
        self._messages[type(message), sender, sent] = message
        if isinstance(message, Position):
            self.positions[sender] = message
        return message

    def _find_problem(self, message: Message, move: int) -> str | None:
        mission, sender, sent, _, number = message.envelope
        goal = message.next if isinstance(message, Position) else None
        sizes = zip(message.place + (goal or ()), 2 * self._shape, strict=False)
        outside = any(index >= size for index, size in sizes)
        if mission != self._mission or sender >= self._team or outside:
            return "foreign"
        if sender == self._uav:
            self.impostors.add(sender)
            return "impostor"
        if not isinstance(message, Position):
            if sent < move - isinstance(message, Plan):
                return "late"
            return "double" if (type(message), sender, sent) in self._messages else None
        newest = self.positions.get(sender)
        if newest is None:
            return None
        if number < newest.envelope.number:
            return "late"
        if number > newest.envelope.number and _follows(newest, message):
            return None
        if message == newest:
            return "double"
        self.impostors.add(sender)
        return "impostor"

    def has_arrived(self, sender: int, move: int) -> bool:
        """Return whether a UAV is known to have made `move` moves, or more."""
        newest = self.positions.get(sender)
        return newest is not None and newest.stage >= Stage.FLYING and newest.envelope.move >= move

    def get(self, kind: type[Kind], sender: int, move: int) -> Kind | None:
        """Return the newest message of a kind that a UAV sent after `move` moves, if heard."""
        message = self._messages.get((kind, sender, move))
        return message if isinstance(message, kind) else None

    def announced(self, sender: int, move: int) -> Place | None:
        """Return the next place that a UAV announced after `move` moves, if known."""
        position = self.get(Position, sender, move)
        return None if position is None else position.next

    def forget(self, move: int) -> None:
        """Release messages of moves before `move`."""
        self._messages = {key: kept for key, kept in self._messages.items() if key[2] >= move}


def _follows(earlier: Position, later: Position) -> bool:
    """Return whether one UAV may have sent both positions."""
    before, after = earlier.envelope.move, later.envelope.move
    if after == before:
        return later.place == earlier.place and earlier.next in (None, later.next)
    return after > before and (after > before + 1 or earlier.next in (None, later.place))
