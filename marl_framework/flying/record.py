"""The record of a flight: an MCAP file, written while the UAVs fly.

For UAV 1 the topics `/uav1/...` have, in the order of the flight,

- `log`: what its pilot logs, and `calls`: calls of its hardware with their results, both as JSON,
- `sent` and `heard`: messages, see `flying.messages`, and `readings`: bits that its camera read,
- what viewers draw, see `flying.views`.

The metadata `flight` has what a replay needs besides, see `facts_of`; each value is YAML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from marl_framework.command_line import warn
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.config.yaml_text import format_yaml
from marl_framework.flying.dry_run import Wrap
from marl_framework.flying.knowledge import Knowledge
from marl_framework.flying.protocols import Hardware
from marl_framework.flying.views import SCHEMAS, draw
from marl_framework.observations.prediction import predictor_checksum
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.checkpoint import tensors_checksum

VERSION = 1
FLIGHT = "flight"
EXTRA = "pip install 'marl_framework[fly]'"
RAW = ("sent", "heard", "readings")  # topics of bytes
_CHUNK = 2**18  # size of a part of the file, at most [bytes]
_PERIOD = 10**9  # time between two writes, at most [ns]

Item = tuple[str, bytes]
"""Last part of a topic, and data."""


class Calls:
    """Stands for a part of the hardware: `calls.name(*args)` is `answer(name, args)`."""

    def __init__(self, answer: Callable[[str, tuple[Any, ...]], Any]) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: self._answer(name, args)


def items(call: str, args: tuple[Any, ...], result: Any) -> list[Item]:
    """Return the items of a call."""
    raw: list[Item] = []
    match call:
        case "send":
            return [("sent", args[0])]
        case "receive":
            result, raw = len(result), [("heard", data) for data in result]
        case "take" if result is not None:
            result, raw = result.shape, [("readings", np.packbits(result).tobytes())]
    return [("calls", to_json({"call": call, "args": args, "result": result})), *raw]


def log_items(entry: Mapping[str, Any], knowledge: Knowledge) -> list[Item]:
    """Return the items of a log entry, with the checksum of a new belief."""
    belief = entry["event"] == "fused"
    checksum = items("belief", (), knowledge.moments[-1].belief) if belief else []
    return [("log", to_json(entry)), *checksum]


def to_json(value: Any) -> bytes:
    """Return a value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


class FlightRecorder:
    """Writes what pilots and their hardware exchange.

    If the file cannot be written, the record ends there with a warning, and the flight goes on. If
    the process is killed, the file has everything up to the newest log entry. For `facts` see
    `facts_of`.
    """

    def __init__(self, file: IO[bytes], facts: Mapping[str, Any]) -> None:
        from mcap.writer import CompressionType, Writer

        self._file, self._stopped = file, False
        self._writer = Writer(file, _CHUNK, CompressionType.NONE)
        self._channels: dict[tuple[int, str], int] = {}
        self._time = self._written = 0  # [ns]
        with self._writing():
            self._writer.start()
            self._writer.add_metadata(FLIGHT, {key: format_yaml(facts[key]) for key in facts})
            self._file.flush()

    def wrap(self, knowledge: Knowledge, parts: Hardware) -> Hardware:
        """Return hardware that records its calls; see `Wrap`."""
        uav = knowledge.uav

        def record(part: object) -> Any:
            def answer(call: str, args: tuple[Any, ...]) -> Any:
                result = getattr(part, call)(*args)
                if call == "now":
                    self._time = max(0, round(result * 1e9))
                self._put(uav, items(call, args, result))
                return result

            return Calls(answer)

        def log(entry: dict[str, Any]) -> None:
            parts.log(entry)
            drawn = draw(entry, knowledge, self._time).items()
            views = [(topic, to_json(content)) for topic, content in drawn]
            self._put(uav, [*log_items(entry, knowledge), *views], at_once=True)

        vehicle, camera, radio, clock = map(record, parts[:4])
        return Hardware(vehicle, camera, radio, clock, log)

    def close(self) -> None:
        """Write the index and close the file."""
        with self._writing():
            if not self._stopped:
                self._writer.finish()
                self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._stopped = True
            warn(f"warning: {self._file.name}: {error.strerror}; the record of this flight ends")
            with suppress(OSError):
                self._file.close()

    def _put(self, uav: int, new: list[Item], at_once: bool = False) -> None:
        if self._stopped:
            return
        with self._writing():
            for topic, data in new:
                channel = self._channel(uav, topic)
                self._writer.add_message(channel, self._time, data, self._time)
            if at_once or self._time - self._written >= _PERIOD:
                self._writer.flush()
                self._written = self._time

    def _channel(self, uav: int, topic: str) -> int:
        if (uav, topic) not in self._channels:
            schema = 0
            if topic in SCHEMAS:
                name, content = SCHEMAS[topic]
                schema = self._writer.register_schema(name, "jsonschema", to_json(content))
            channel = f"/uav{uav + 1}/{topic}", "x-bytes" if topic in RAW else "json", schema
            self._channels[uav, topic] = self._writer.register_channel(*channel)
        return self._channels[uav, topic]


@contextmanager
def recording(path: Path, facts: Mapping[str, Any]) -> Iterator[Wrap]:
    """Write a record, and yield the `wrap` of its recorder.

    Without the package mcap, or if the file cannot be opened, a warning says that there is none.
    """
    try:
        import mcap  # noqa: F401

        file = path.open("wb")
    except (ImportError, OSError) as error:
        reason = f"{path}: {error.strerror}" if isinstance(error, OSError) else EXTRA
        warn(f"warning: no record of this flight; {reason}")
        yield lambda knowledge, parts: parts
        return
    with closing(FlightRecorder(file, facts)) as recorder:
        yield recorder.wrap


def facts_of(
    config: Config, policy: str, team: Checkpoint | None, seed: int, separation: float
) -> dict[str, Any]:
    """Return what a replay needs besides the items, in plain types.

    `weights` has the checksum of each network that the planner uses, by option or key.
    """
    weights = {}
    if policy == LEARNED and team is not None:
        weights["--checkpoint"] = tensors_checksum(team.actor())
    if policy == LEARNED and config.observation.sees_prediction:
        key = "networks.predictor"
        weights[key] = predictor_checksum(config.networks.predictor, key)
    if policy == "search":
        key = "experiment.baselines.search.predictor"
        weights[key] = predictor_checksum(config.experiment.baselines.search.predictor, key)
    return {
        "version": VERSION,
        "configuration": config_to_dict(config),
        "policy": policy,
        "checkpoint": None if team is None else team.name,
        "weights": weights,
        "seed": seed,
        "separation": separation,
    }
