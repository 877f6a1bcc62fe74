"""A flight is recorded as it happens, and fresh pilots repeat it from the record."""

from __future__ import annotations

import base64
import errno
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.flying.dry_run import DryFlight, fly, with_time_factor
from marl_framework.flying.knowledge import Knowledge
from marl_framework.flying.messages import Reading, decode, encode
from marl_framework.flying.pilot import Phase, Pilot
from marl_framework.flying.record import FlightRecorder, facts_of, recording
from marl_framework.flying.replay import read_record, replay
from marl_framework.flying.simulated import World
from marl_framework.flying.views import draw
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.team import load_team
from tests.flying.dry import SEED, config_of, maker, team
from tests.soaking import in_soak
from tests.teams import save_team

reader = pytest.importorskip("mcap.reader")
writer = pytest.importorskip("mcap.writer")

LOSSY = {"uav": {"communication_range": 15.0, "failure_rate": 0.3}}
Flight = tuple[DryFlight, World, list[Pilot], list[dict[str, Any]]]
Change = Callable[[str, bytes], bytes]


def facts(config: Config, policy: str, folder: Path, seed: int = SEED) -> dict[str, Any]:
    return facts_of(config, policy, load_team(str(folder / "team.pt")), seed, 0.0)


def flight(path: Path, policy: str, **options: Any) -> Flight:
    """Fly a team of three and record it to a file; the team lies beside the file."""
    config = config_of(path.parent, **LOSSY)
    make = maker(policy, config, path.parent)
    with recording(path, facts(config, policy, path.parent)) as wrap:
        world, pilots, entries = team(config, make, wrap=wrap, **options)
        return fly(world, pilots), world, pilots, entries


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flight") / "flight.mcap"
    flight(path, "information_gain")
    return path


def rewritten(path: Path, copy: Path, change: Change) -> Path:
    """Copy a record; `change` takes topic and data of each message."""
    with path.open("rb") as source, copy.open("wb") as target:
        found, out = (
            reader.make_reader(source),
            writer.Writer(target, compression=writer.CompressionType.NONE),
        )
        out.start()
        channels: dict[int, int] = {}
        for metadata in found.iter_metadata():
            out.add_metadata(metadata.name, metadata.metadata)
        for _, channel, message in found.iter_messages(log_time_order=False):
            if channel.id not in channels:
                name = channel.topic, channel.message_encoding, 0
                channels[channel.id] = out.register_channel(*name)
            data = change(channel.topic, message.data)
            out.add_message(channels[channel.id], message.log_time, data, message.log_time)
        out.finish()
    return copy


def once(topic: str, change: Callable[[bytes], bytes], number: int = 5) -> Change:
    """Change one message of a topic."""
    seen = 0

    def apply(name: str, data: bytes) -> bytes:
        nonlocal seen
        seen += name == topic
        return change(data) if name == topic and seen == number else data

    return apply


@pytest.mark.parametrize("policy", ["learned", *in_soak("search", "information_gain"), "random"])
def test_fresh_pilots_repeat_a_flight(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flight.mcap"
    flown, world, _, entries = flight(path, policy)
    assert any(len(moment.heard) < 3 for moments in flown.moments for moment in moments)
    assert replay(path) == 0
    assert capsys.readouterr().out.endswith("equal: yes\n")
    _, tapes, closed = read_record(path)
    assert closed
    for uav in range(3):
        found = tapes[uav].items
        log = [json.loads(data) for topic, data in found if topic == "log"]
        assert log == json.loads(json.dumps([entry for entry in entries if entry["uav"] == uav]))
        sent = [data for topic, data in found if topic == "sent"]
        assert sent == [data for data in world.sent if decode(data).envelope.sender == uav]
        heard = {
            (decode(data).envelope.sender, decode(data).envelope.move)
            for topic, data in found
            if topic == "heard" and isinstance(decode(data), Reading)
        }
        moments = enumerate(flown.moments[uav])
        fused = {(j, move) for move, moment in moments for j in moment.heard if j != uav}
        assert heard == fused


@pytest.mark.parametrize("first", [Phase.WAITING, Phase.FLYING])
def test_fresh_pilots_repeat_aborts(tmp_path: Path, first: Phase) -> None:
    path, config = tmp_path / "flight.mcap", config_of(tmp_path, **LOSSY)
    make = maker("random", config, tmp_path)
    with recording(path, facts(config, "random", tmp_path)) as wrap:
        world, pilots, _ = team(config, make, wrap=wrap)
        for pilot, phase in ((pilots[1], first), (pilots[2], Phase.LEAVING)):
            while pilot.phase is not phase:
                if not any([each.advance() for each in pilots]):
                    world.clock.advance(0.25)
            pilot.abort("stopped by hand")
        fly(world, pilots)
    assert replay(path) == 0


def test_fresh_pilots_repeat_a_flight_by_a_fast_clock(tmp_path: Path) -> None:
    path = tmp_path / "flight.mcap"
    config = config_of(tmp_path, **LOSSY, flying={"message_timeout": 0.5})  # below a heartbeat
    make, known = maker("random", config, tmp_path), facts(config, "random", tmp_path)
    with recording(path, {**known, "time_factor": 50.0}) as wrap:
        world, pilots, _ = team(with_time_factor(config, 50.0), make, wrap=wrap)
        fly(world, pilots)
    assert {pilot.end for pilot in pilots} == {"mission done"}
    assert replay(path) == 0


def test_recording_changes_nothing(tmp_path: Path) -> None:
    flown, world, *_ = flight(tmp_path / "flight.mcap", "search")
    config = config_of(tmp_path, **LOSSY)
    plain, pilots, _ = team(config, maker("search", config, tmp_path))
    assert fly(plain, pilots).moments == flown.moments
    assert plain.sent == world.sent


def test_a_copy_is_equal(tmp_path: Path, recorded: Path) -> None:
    assert replay(rewritten(recorded, tmp_path / "copy.mcap", lambda topic, data: data)) == 0


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 128])


def flip_heard(data: bytes) -> bytes:
    """Change a cell of a reading, with a valid checksum."""
    message = decode(data)
    assert isinstance(message, Reading)
    bits = message.bits.copy()
    bits[0, 0] ^= True
    return encode(Reading(message.envelope, message.place, bits))


def heard_by(uav: int, change: Callable[[bytes], bytes]) -> Change:
    """Change all readings that a UAV hears."""
    topic = f"/uav{uav}/heard"

    def apply(name: str, data: bytes) -> bytes:
        return change(data) if name == topic and isinstance(decode(data), Reading) else data

    return apply


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (once("/uav2/readings", flip), "UAV 2, .*recorded sent"),
        (heard_by(1, flip), "UAV 1, .*fused"),  # dropped as damaged
        (heard_by(3, flip_heard), "UAV 3, .*belief"),
        (once("/uav2/log", lambda data: data.replace(b'"place":[', b'"place":[1')), "UAV 2"),
        (once("/uav2/calls", lambda data: data.replace(b"now", b"take"), 4), "UAV 2"),
    ],
    ids=["own reading", "damaged message", "heard reading", "log", "call"],
)
def test_a_change_is_found(
    tmp_path: Path,
    recorded: Path,
    capsys: pytest.CaptureFixture[str],
    change: Change,
    named: str,
) -> None:
    assert replay(rewritten(recorded, tmp_path / "copy.mcap", change)) == 1
    printed = capsys.readouterr().out
    assert "equal: no, UAV " in printed
    assert re.search(named, printed)


def test_damage_and_other_weights_are_refused(tmp_path: Path, recorded: Path) -> None:
    content = bytearray(recorded.read_bytes())
    content[content.index(b'"call"', len(content) // 2)] ^= 1
    damaged = tmp_path / "damaged.mcap"
    damaged.write_bytes(content)
    with pytest.raises(ConfigError, match="checksum"):
        replay(damaged)
    damaged.write_bytes(b"nothing" * 9)
    with pytest.raises(ConfigError, match="not the record"):
        replay(damaged)
    whole = recorded.read_bytes()
    damaged.write_bytes(whole[: whole.index(b"/uav")])  # only the metadata
    with pytest.raises(ConfigError, match="before the flight"):
        replay(damaged)
    path = tmp_path / "flight.mcap"
    flight(path, "learned")
    config = config_of(tmp_path, **LOSSY)
    other = save_team(tmp_path / "other.pt", config, seed=8)
    with pytest.raises(ConfigError, match="--checkpoint: "):
        replay(path, str(other))


KILLED = """
import os, signal, sys
from pathlib import Path
from marl_framework.flying.simulated import MissionRadio
from tests.flying import test_record

class Killing(MissionRadio):
    def send(self, data):
        super().send(data)
        if len(self._world.sent) == 400:
            os.kill(os.getpid(), signal.SIGKILL)

test_record.flight(Path(sys.argv[1]), "information_gain", radio=Killing)
"""


@pytest.mark.soak
def test_a_killed_process_leaves_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flight.mcap"
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=root)
    assert killed.returncode == -signal.SIGKILL
    _, tapes, closed = read_record(path)
    assert not closed
    sent = sum(topic == "sent" for tape in tapes.values() for topic, _ in tape.items)
    assert 390 <= sent <= 400
    assert replay(path) == 0
    assert "equal: yes" in capsys.readouterr().out


class SmallDisk(BytesIO):
    """A file on a disk of 30,000 bytes."""

    name = "flight.mcap"
    written = b""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 30_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)

    def close(self) -> None:
        if not self.closed:
            self.written = self.getvalue()
        super().close()


def test_a_disk_that_fills_ends_the_record_and_not_the_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path, **LOSSY)
    make = maker("information_gain", config, tmp_path)
    disk, (plain, pilots, _) = SmallDisk(), team(config, make)
    recorder = FlightRecorder(disk, facts(config, "information_gain", tmp_path))
    world, recorded, _ = team(config, make, wrap=recorder.wrap)
    assert fly(world, recorded).moments == fly(plain, pilots).moments
    recorder.close()
    said = capsys.readouterr().err
    assert said == "warning: flight.mcap: No space left on device; the record of this flight ends\n"
    path = tmp_path / "flight.mcap"
    path.write_bytes(disk.written)
    _, tapes, closed = read_record(path)
    assert not closed
    assert len(tapes) == 3
    assert replay(path) == 0


def test_a_full_disk_does_not_end_the_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full.mcap").symlink_to("/dev/full")
    flight(tmp_path / "full.mcap", "random")
    assert (
        capsys.readouterr().err.count("No space left on device; the record of this flight ends")
        == 1
    )
    path = tmp_path / "flight" / "flight.mcap"
    path.mkdir(parents=True)
    flight(path, "random")
    assert "no record of this flight" in capsys.readouterr().err


def test_viewers_see_positions_ways_and_beliefs(tmp_path: Path) -> None:
    path = tmp_path / "flight.mcap"
    flown, world, pilots, _ = flight(path, "information_gain")
    seen: dict[str, list[Any]] = {}
    with path.open("rb") as file:
        for schema, channel, message in reader.make_reader(file).iter_messages():
            if schema is not None and schema.name.startswith("foxglove."):
                assert json.loads(schema.data)["type"] == "object"
                content = json.loads(message.data)
                assert content.keys() <= json.loads(schema.data)["properties"].keys()
                name = channel.topic.removeprefix("/uav2/")
                seen.setdefault(f"{name} {schema.name}", []).append((message.log_time, content))
    lattice = world.environment.lattice
    places = [lattice.metres(torch.tensor(moment.place)).tolist() for moment in flown.moments[1]]
    poses = [found["pose"]["position"] for _, found in seen["position foxglove.PoseInFrame"]]
    assert [list(pose.values()) for pose in poses] == places
    ways = [found["poses"] for _, found in seen["way foxglove.PosesInFrame"]]
    assert [list(way[1]["position"].values()) for way in ways] == places[1:]
    time, last = seen["belief foxglove.Grid"][-1]
    assert last["timestamp"] == {"sec": time // 10**9, "nsec": time % 10**9}
    data = np.frombuffer(base64.b64decode(last["data"]), np.uint8)
    belief = pilots[1].knowledge.state.beliefs[0, 1].numpy()
    drawn = data.reshape(-1, last["row_stride"])
    assert drawn.shape == belief.T.shape
    assert np.abs(drawn / 255 - belief.T).max() <= 0.5 / 255 + 1e-6


def test_a_large_belief_is_averaged(tmp_path: Path) -> None:
    config = config_of(tmp_path, pixels=(57, 57))
    env = MissionEnvironment(config, 1, "cpu", "test")
    known, (rows, cols) = Knowledge(0, env, env.empty_state()), env.camera.shape
    assert rows == cols == 296
    known.state.beliefs[:] = ((torch.arange(rows) + 0.5) / rows).unsqueeze(1)  # grows along x
    drawn = draw({"event": "fused"}, known, 0)["belief"]
    data = np.frombuffer(base64.b64decode(drawn["data"]), np.uint8).reshape(99, 99)
    expected = np.tile((np.arange(99) + 0.5) / 99, (99, 1))
    assert data / 255 == pytest.approx(expected, abs=0.51 / 255)
    assert drawn["cell_size"]["x"] * 99 == pytest.approx(rows * config.geometry.cell_size[0])
