"""Replay of a record: fresh pilots read and hear the same as the recorded ones."""

from __future__ import annotations

import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict
from marl_framework.config.yaml_text import parse_yaml
from marl_framework.flying.dry_run import make_pilots, with_time_factor
from marl_framework.flying.knowledge import Knowledge
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.protocols import Hardware, Status
from marl_framework.flying.record import (
    EXTRA,
    FLIGHT,
    RAW,
    VERSION,
    Calls,
    Item,
    facts_of,
    items,
    log_items,
)
from marl_framework.flying.simulated import World
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import find_checkpoint

_LONGEST = 120  # characters of an item in a message


class StoppedError(Exception):
    """End of a replay; the message is the first difference, or empty at the end of the record."""


class Tape:
    """The recorded items of a UAV, which a fresh pilot must make again.

    Attributes:
        items: all items.
        position: number of items that agree so far.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.position = 0

    def hardware(self, knowledge: Knowledge) -> Hardware:
        """Return hardware that answers as recorded."""
        part: Any = Calls(self._answer)
        return Hardware(
            part, part, part, part, lambda entry: self._expect(log_items(entry, knowledge))
        )

    def _answer(self, call: str, args: tuple[Any, ...]) -> Any:
        """Return the recorded result of a call. Raises StoppedError for another, or at the end."""
        topic, data = self._next()
        content = json.loads(data) if topic == "calls" else {}
        result = content.get("result") if content.get("call") == call else None
        if call == "receive":
            result = self._following(result or 0)
        elif call == "take" and result is not None:
            packed = np.frombuffer(self._following(1)[0], np.uint8)
            result = np.unpackbits(packed, count=result[0] * result[1]).view(bool).reshape(result)
        elif call == "status" and result is not None:
            fields: list[Any] = [tuple(v) if isinstance(v, list) else v for v in result]
            result = Status(*fields)
        self._expect(items(call, args, result))
        return result

    def abort(self) -> str | None:
        """Return why the pilot was aborted now; None if it was not.

        A pilot that advances receives first; a pilot that is aborted asks for the time.
        """
        calls, entry = (self.items[self.position + k : self.position + k + 1] for k in (0, 1))
        if not calls or calls[0][0] != "calls" or json.loads(calls[0][1])["call"] != "now":
            return None
        log = json.loads(entry[0][1]) if entry and entry[0][0] == "log" else {}
        reason: str = log.get("reason", "")
        return reason

    def _following(self, count: int) -> list[bytes]:
        """Return the data of the items after the next one."""
        first = self.position + 1
        found = [data for _, data in self.items[first : first + count]]
        if len(found) < count:
            raise StoppedError
        return found

    def _next(self) -> Item:
        if self.position == len(self.items):
            raise StoppedError
        return self.items[self.position]

    def _expect(self, replayed: list[Item]) -> None:
        for item in replayed:
            if item != (recorded := self._next()):
                texts = f"recorded {_text(recorded)}, replayed {_text(item)}"
                raise StoppedError(f"item {self.position}: {texts}")
            self.position += 1


def first_difference(pilot: Pilot, tape: Tape) -> str:
    """Fly a pilot to the end of its tape; return the first difference, or an empty text."""
    try:
        while not pilot.over:
            if (reason := tape.abort()) is not None:
                pilot.abort(reason)
            before = tape.position
            if not pilot.advance() and tape.position == before:
                return f"item {before}: the replayed pilot waits forever"
    except StoppedError as stop:
        return str(stop)
    over = tape.position == len(tape.items)
    return "" if over else f"item {tape.position}: the replayed pilot is done"


def read_record(path: Path) -> tuple[dict[str, Any], dict[int, Tape], bool]:
    """Return the facts of a record, the tape of each UAV, and whether the record was closed.

    A record that was cut off is read up to its last whole part. Raises ConfigError if it cannot be
    read or is damaged.
    """
    try:
        from mcap import exceptions, records
        from mcap.stream_reader import CRCValidationError, StreamReader
    except ImportError as error:
        raise ConfigError(f"--replay requires the package mcap; {EXTRA}") from error
    facts: dict[str, Any] = {}
    tapes: dict[int, Tape] = {}
    topics: dict[int, tuple[int, str]] = {}
    closed = False
    try:
        with path.open("rb") as file:
            for entry in StreamReader(file, validate_crcs=True).records:
                match entry:
                    case records.Metadata(name=name) if name == FLIGHT:
                        facts = {k: parse_yaml(v, str(path)) for k, v in entry.metadata.items()}
                    case records.Channel():
                        number, name = entry.topic.removeprefix("/uav").split("/")
                        topics[entry.id] = int(number) - 1, name
                    case records.Message():
                        uav, topic = topics[entry.channel_id]
                        if topic in (*RAW, "calls", "log"):
                            tapes.setdefault(uav, Tape()).items.append((topic, entry.data))
                    case records.Footer():
                        closed = True
    except OSError as error:
        raise ConfigError(f"--replay {path}: cannot be read: {error.strerror}") from error
    except CRCValidationError as error:
        raise ConfigError(f"--replay {path}: damaged: a checksum is wrong") from error
    except (exceptions.EndOfFile, struct.error):
        pass
    except (exceptions.McapError, ValueError, KeyError) as error:
        raise ConfigError(f"--replay {path}: not the record of a flight") from error
    if facts.get("version") != VERSION:
        raise ConfigError(f"--replay {path}: not the record of a flight of version {VERSION}")
    if not tapes:
        raise ConfigError(f"--replay {path}: the record ended before the flight; use another one")
    return facts, tapes, closed


def replay(path: Path, checkpoint: str | None = None) -> int:
    """Replay a record, print the first difference, and return the exit code, 0 or 1.

    `checkpoint`: trained team; None for the one that the record names. Raises ConfigError if the
    record, the team or the predictor cannot be read, or the weights have changed.
    """
    facts, tapes, closed = read_record(path)
    policy, seed, separation = facts["policy"], facts["seed"], facts["separation"]
    config = config_from_dict(facts["configuration"], f"configuration in {path}")
    name = checkpoint or facts["checkpoint"]
    team = None if name is None else find_checkpoint(name)
    for key, checksum in facts_of(config, policy, team, seed, separation)["weights"].items():
        if facts["weights"].get(key) != checksum:
            raise ConfigError(f"{key}: other weights than in {path}; use those of the flight")
    make = partial(make_planner, policy, checkpoint=team)

    def wrap(knowledge: Knowledge, parts: Hardware) -> Hardware:
        tape = tapes.get(knowledge.uav)
        return parts if tape is None else tape.hardware(knowledge)

    slow = with_time_factor(config, facts.get("time_factor", 1.0))
    world = World(MissionEnvironment(slow, 1, "cpu", "test"), seed)
    pilots = make_pilots(world, make, separation=separation, wrap=wrap)
    found = []
    for uav, tape in sorted(tapes.items()):
        if difference := first_difference(pilots[uav], tape):
            found.append(f"UAV {uav + 1}, {difference}")
        print(f"UAV {uav + 1}: {pilots[uav].move} moves, {tape.position} items replayed")
    if not closed:
        print("the record was cut off and has been replayed up to there")
    print(f"equal: {'no, ' + found[0] if found else 'yes'}")
    return 1 if found else 0


def _text(item: Item) -> str:
    topic, data = item
    return f"{topic} {f'{len(data)} bytes' if topic in RAW else data.decode()[:_LONGEST]}"
