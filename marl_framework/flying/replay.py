"""Replay of a recorded flight: fresh pilots on what the recorded ones read and heard."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict
from marl_framework.config.yaml_text import parse_yaml
from marl_framework.flying.dry_run import make_pilots, make_world
from marl_framework.flying.pilot import Phase, Pilot
from marl_framework.flying.protocols import Status
from marl_framework.flying.record import (
    EXTRA,
    FLIGHT,
    RAW,
    VERSION,
    Answer,
    Hardware,
    Item,
    hardware,
    items,
    log_items,
    plain,
    weights,
)
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import find_checkpoint

_REPLAYED = (*RAW, "log", "calls")
_LONGEST = 120  # characters of an item in a message


class Difference(Exception):  # noqa: N818 (no error: the result of a replay)
    """A replayed pilot does something else than the recorded one."""


class End(Exception):  # noqa: N818
    """The record has no more items."""


@dataclass
class Record:
    """Content of a record."""

    facts: dict[str, Any] = field(default_factory=dict)
    """See `record.facts_of`."""
    items: dict[int, list[Item]] = field(default_factory=dict)
    """Recorded items by UAV, in order."""
    complete: bool = False
    """Whether the record was closed; False after a crash or with a full disk."""


def read_record(path: Path) -> Record:
    """Read a record up to its end, or up to its last whole part if it was cut off.

    Raises ConfigError if it cannot be read or is damaged.
    """
    try:
        from mcap import exceptions, records
        from mcap.stream_reader import CRCValidationError, StreamReader
    except ImportError as error:
        raise ConfigError(f"--replay needs the package mcap; {EXTRA}") from error
    found, topics = Record(), dict[int, tuple[int, str]]()
    try:
        with path.open("rb") as file:
            for entry in StreamReader(file, validate_crcs=True).records:
                match entry:
                    case records.Metadata(name=name, metadata=facts) if name == FLIGHT:
                        found.facts = {
                            key: parse_yaml(text, str(path)) for key, text in facts.items()
                        }
                    case records.Channel():
                        number, name = entry.topic.removeprefix("/uav").split("/")
                        topics[entry.id] = int(number) - 1, name
                    case records.Message():
                        uav, topic = topics[entry.channel_id]
                        if topic in _REPLAYED:
                            found.items.setdefault(uav, []).append(Item(topic, entry.data))
                    case records.Footer():
                        found.complete = True
    except OSError as error:
        raise ConfigError(f"--replay {path}: cannot be read: {error.strerror}") from error
    except CRCValidationError as error:
        raise ConfigError(f"--replay {path}: damaged: a checksum is wrong") from error
    except (exceptions.EndOfFile, struct.error):
        pass
    except (exceptions.McapError, ValueError, KeyError) as error:
        raise ConfigError(f"--replay {path}: not a record of a flight") from error
    if found.facts.get("version") != VERSION:
        raise ConfigError(f"--replay {path}: not a record of a flight of version {VERSION}")
    return found


class Tape:
    """Answers the calls of a replayed pilot as in the record, and compares what it does.

    Args:
        uav: index of the UAV.
        recorded: its items.

    Attributes:
        position: number of items that agree so far.
    """

    def __init__(self, uav: int, recorded: list[Item]) -> None:
        self._uav, self._recorded, self.position = uav, recorded, 0

    def wrap(self, state: MissionState) -> Hardware:
        """Return hardware that replays the record for a UAV that knows `state`."""

        def log(entry: dict[str, Any]) -> None:
            for item in log_items(entry, self._uav, state):
                self._expect(item)

        answers: list[Answer] = [self.answer] * 4
        return hardware(answers, log)

    def answer(self, call: str, args: tuple[Any, ...]) -> Any:
        """Return the recorded result of a call. Raises Difference for another call, and End."""
        if call == "send":
            return self._expect(items(call, args, None)[0])
        recorded = self._take()
        content = json.loads(recorded.data) if recorded.topic == "calls" else {}
        result = content.pop("result", None)
        if recorded != plain(call, args, result):
            self._differ(recorded, plain(call, args, result))
        match call:
            case "receive":
                return [self._take().data for _ in range(result)]
            case "take" if result is not None:
                bits = np.frombuffer(self._take().data, np.uint8)
                return (
                    np.unpackbits(bits, count=result[0] * result[1]).view(np.bool_).reshape(result)
                )
            case "status":
                time, position, *rest = result
                return Status(time, None if position is None else tuple(position), *rest)
        return result

    def is_over(self) -> bool:
        """Return whether all items have been replayed."""
        return self.position == len(self._recorded)

    def _take(self) -> Item:
        if self.is_over():
            raise End
        self.position += 1
        return self._recorded[self.position - 1]

    def _expect(self, item: Item) -> None:
        recorded = self._take()
        if recorded != item:
            self._differ(recorded, item)

    def _differ(self, recorded: Item, replayed: Item) -> None:
        here, there = (_text(item) for item in (recorded, replayed))
        raise Difference(f"item {self.position}: recorded {here}; replayed {there}")


def replay(path: Path, checkpoint: str | None = None) -> int:
    """Replay a record with fresh pilots and print the first difference; return the exit code.

    `checkpoint`: trained team; None for the one that the record names. Raises ConfigError if the
    record, or the team or predictor that it needs, is missing or another one.
    """
    record = read_record(path)
    facts = record.facts
    config = config_from_dict(facts["configuration"], f"configuration in {path}")
    name = checkpoint or facts["checkpoint"]
    team = None if name is None else find_checkpoint(name)
    for key, checksum in weights(config, facts["policy"], team).items():
        if facts["weights"].get(key) != checksum:
            raise ConfigError(f"{key}: the weights are not those of {path}; give the same ones")
    world = make_world(MissionEnvironment(config, 1, "cpu", "test"), facts["seed"])
    tapes = {uav: Tape(uav, found) for uav, found in sorted(record.items.items())}

    def wrap(uav: int, state: MissionState, parts: Hardware) -> Hardware:
        return tapes[uav].wrap(state) if uav in tapes else parts

    def make(environment: MissionEnvironment) -> Any:
        return make_planner(facts["policy"], environment, team)

    pilots = make_pilots(world, make, facts["seed"], separation=facts["separation"], wrap=wrap)
    differences = {uav: first_difference(pilots[uav], tapes[uav]) for uav in tapes}
    for uav in tapes:
        print(f"UAV {uav + 1}: {pilots[uav].move} moves, {tapes[uav].position} items replayed")
    if not record.complete:
        print("The record was not closed: replayed up to its end.")
    found = [f"UAV {uav + 1}, {text}" for uav, text in differences.items() if text is not None]
    print(f"equal: {'no, ' + found[0] if found else 'yes'}")
    return 1 if found else 0


def first_difference(pilot: Pilot, tape: Tape) -> str | None:
    """Fly a pilot to the end of its record; return the first difference, or None."""
    try:
        while pilot.phase is not Phase.DONE:
            before = tape.position
            if not pilot.advance() and tape.position == before:
                return f"item {before}: the replayed pilot does nothing more"
    except End:
        return None
    except Difference as difference:
        return str(difference)
    return None if tape.is_over() else f"item {tape.position}: the recorded pilot goes on"


def _text(item: Item) -> str:
    text = f"{len(item.data)} bytes" if item.topic in RAW else item.data.decode()
    return f"{item.topic} {text[:_LONGEST]}"
