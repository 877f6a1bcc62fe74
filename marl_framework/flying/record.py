"""The record of a flight: an MCAP file, written while the UAVs fly.

For each UAV n the topics `/uav<n>/...` have, in the order of the flight,

- `log`: what the pilot logs,
- `calls`: calls of its vehicle, camera, radio and clock, with their results,
- `sent` and `heard`: messages, as in `flying.messages`; `readings`: bits of what the camera read,
- `position`, `way` and `belief`: what viewers draw, see `flying.views`.

The metadata `flight` has what a replay needs besides, each as YAML.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import torch

from marl_framework.command_line import warn
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.config.yaml_text import format_yaml
from marl_framework.flying.protocols import Camera, Clock, Radio, Vehicle
from marl_framework.flying.views import SCHEMAS, grid, pose, stamp
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.prediction import predictor_checksum
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.checkpoint import tensors_checksum

VERSION = 1
EXTRA = "pip install 'marl_framework[fly]'"
FLIGHT = "flight"
"""Name of the metadata."""
RAW = ("sent", "heard", "readings")
"""Topics of bytes."""
Log = Callable[[dict[str, Any]], None]
Answer = Callable[[str, tuple[Any, ...]], Any]
_CHUNK = 2**18  # bytes that are written at once, at most
_PERIOD = 10**9  # time between writes, at most [ns]


class Item(NamedTuple):
    """A message of a record that a replay reads."""

    topic: str
    """Last part of the topic."""
    data: bytes


class Hardware(NamedTuple):
    """All through which a pilot meets the world."""

    vehicle: Vehicle
    camera: Camera
    radio: Radio
    clock: Clock
    log: Log


Wrap = Callable[[int, MissionState, Hardware], Hardware]
"""Replaces the hardware of a UAV that knows a state."""


def unwrapped(uav: int, state: MissionState, parts: Hardware) -> Hardware:
    """Return the hardware as it is."""
    return parts


class Calls:
    """Stands for an object: `calls.name(*args)` returns `answer(name, args)`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: self._answer(name, args)


def hardware(answers: Iterable[Answer], log: Log) -> Hardware:
    """Return hardware whose calls go to `answers`, in the order of the fields."""
    vehicle, camera, radio, clock = (cast(Any, Calls(answer)) for answer in answers)
    return Hardware(vehicle, camera, radio, clock, log)


def plain(call: str, args: tuple[Any, ...], result: Any = None) -> Item:
    """Return a call as an item."""
    return Item("calls", _json({"call": call, "args": args, "result": result}))


def items(call: str, args: tuple[Any, ...], result: Any) -> list[Item]:
    """Return the items of a call of vehicle, camera, radio or clock."""
    match call:
        case "send":
            return [Item("sent", args[0])]
        case "receive":
            return [plain(call, args, len(result)), *(Item("heard", data) for data in result)]
        case "take" if result is not None:
            bits = np.packbits(result).tobytes()
            return [plain(call, args, result.shape), Item("readings", bits)]
    return [plain(call, args, result)]


def log_items(entry: Mapping[str, Any], uav: int, state: MissionState) -> list[Item]:
    """Return the items of a log entry of a UAV that knows `state`."""
    found = [Item("log", _json(entry))]
    if entry["event"] == "fused":
        belief = state.beliefs[0, uav].cpu().numpy().tobytes()
        found.append(plain("belief", (zlib.crc32(belief),)))
    return found


class FlightRecorder:
    """Writes what pilots exchange with the world into a file.

    If the file cannot be written, the record ends there with one line on standard error, and the
    flight goes on. Everything up to the newest log entry, or the second before, is in the file if
    the process is killed.

    Args:
        file: file to write; `close` closes it.
        facts: see `facts_of`.
        environment: environment of the mission.
    """

    def __init__(
        self, file: IO[bytes], facts: Mapping[str, Any], environment: MissionEnvironment
    ) -> None:
        from mcap.writer import CompressionType, Writer

        self._file, self._env = file, environment
        self._writer = Writer(file, _CHUNK, CompressionType.NONE)
        self._channels: dict[tuple[int, str], int] = {}
        self._time = self._written = 0  # [ns]
        self._stopped = False
        self._safely(lambda: self._begin(facts))

    def _begin(self, facts: Mapping[str, Any]) -> None:
        self._writer.start(library="marl_framework")
        self._writer.add_metadata(FLIGHT, {key: format_yaml(facts[key]) for key in facts})
        self._file.flush()

    def wrap(self, uav: int, state: MissionState, parts: Hardware) -> Hardware:
        """Return the hardware of a UAV that knows `state`, with all calls recorded."""

        def record(target: Any) -> Answer:
            def answer(call: str, args: tuple[Any, ...]) -> Any:
                result = getattr(target, call)(*args)
                if call == "now":
                    self._time = max(0, round(result * 1e9))
                self._safely(lambda: self._put(uav, items(call, args, result)))
                return result

            return answer

        def log(entry: dict[str, Any]) -> None:
            parts.log(entry)
            views = self._views(entry, uav, state)
            self._safely(lambda: self._put(uav, [*log_items(entry, uav, state), *views], True))

        return hardware(map(record, parts[:4]), log)

    def close(self) -> None:
        """Write the index and close the file."""
        self._safely(self._writer.finish)
        self._safely(self._file.close)

    def _safely(self, write: Callable[[], None]) -> None:
        if self._stopped:
            return
        try:
            write()
        except OSError as error:
            self._stopped = True
            name = getattr(self._file, "name", "record")
            warn(f"warning: {name}: {error.strerror or error}; the record ends here")
            with suppress(OSError):
                self._file.close()

    def _put(self, uav: int, new: list[Item], at_once: bool = False) -> None:
        for topic, data in new:
            channel = self._channel(uav, topic)
            self._writer.add_message(channel, self._time, data, self._time)
        if at_once or self._time - self._written >= _PERIOD:
            self._writer.flush()
            self._written = self._time

    def _channel(self, uav: int, topic: str) -> int:
        if (uav, topic) not in self._channels:
            schema, encoding = 0, "x-flight"
            if topic not in RAW:
                name, content = SCHEMAS[topic]
                schema, encoding = (
                    self._writer.register_schema(name, "jsonschema", _json(content)),
                    "json",
                )
            name = f"/uav{uav + 1}/{topic}"
            self._channels[uav, topic] = self._writer.register_channel(name, encoding, schema)
        return self._channels[uav, topic]

    def _views(self, entry: Mapping[str, Any], uav: int, state: MissionState) -> list[Item]:
        """Return what viewers draw after a log entry."""
        if self._stopped or entry["event"] not in ("fused", "decided"):
            return []
        places = [state.positions[0, uav].tolist(), *([entry["next"]] if "next" in entry else [])]
        here, *way = [pose(self._metres(place)) for place in places]
        common = stamp(self._time)
        if way:
            return [Item("way", _json({**common, "poses": [here, *way]}))]
        belief = grid(state.beliefs[0, uav], self._env.config.geometry.cell_size)
        return [
            Item("position", _json({**common, "pose": here})),
            Item("belief", _json({**common, **belief})),
        ]

    def _metres(self, place: Any) -> list[float]:
        metres: list[float] = self._env.lattice.metres(torch.tensor(place)).tolist()
        return metres


@contextmanager
def recording(
    path: Path, facts: Mapping[str, Any], environment: MissionEnvironment
) -> Iterator[Wrap]:
    """Write a record; yield its `FlightRecorder.wrap`.

    Without the package mcap, or if the file cannot be opened, a warning says so, and the hardware
    stays as it is.
    """
    try:
        from mcap import writer  # noqa: F401

        file = open(path, "wb")  # noqa: SIM115 (closed by the recorder)
    except (ImportError, OSError) as error:
        reason = EXTRA if isinstance(error, ImportError) else f"{path}: {error.strerror}"
        warn(f"warning: no record of this flight; {reason}")
        yield unwrapped
        return
    recorder = FlightRecorder(file, facts, environment)
    try:
        yield recorder.wrap
    finally:
        recorder.close()


def facts_of(
    config: Config, policy: str, team: Checkpoint | None, seed: int, separation: float
) -> dict[str, Any]:
    """Return what a replay needs besides the record's items, in plain types."""
    return {
        "version": VERSION,
        "configuration": config_to_dict(config),
        "policy": policy,
        "checkpoint": None if team is None else team.name,
        "weights": weights(config, policy, team),
        "seed": seed,
        "separation": separation,
    }


def weights(config: Config, policy: str, team: Checkpoint | None) -> dict[str, str]:
    """Return the checksum of each network that a planner uses, by the option or key that names it.

    Raises ConfigError if a predictor cannot be read.
    """
    found, predictors = {}, {}
    if policy == LEARNED and team is not None:
        found["--checkpoint"] = tensors_checksum(team.actor())
        if config.observation.sees_prediction:
            predictors["networks.predictor"] = config.networks.predictor
    if policy == "search":
        key = "experiment.baselines.search.predictor"
        predictors[key] = config.experiment.baselines.search.predictor
    return found | {key: predictor_checksum(name, key) for key, name in predictors.items()}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
