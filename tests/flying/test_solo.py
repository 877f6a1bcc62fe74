"""The command flies one UAV, renews its page, and returns on an interruption or a file."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import torch

from marl_framework.config.loading import dump_config
from marl_framework.flying import solo
from marl_framework.flying.options import main
from marl_framework.flying.replay import read_record
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision
from tests.evaluation.test_mission_page import data
from tests.flying.dry import config_of, maker

pytest.importorskip("mcap")
pytest.importorskip("zenoh")
MOVE = 3


class Watched:
    """A planner that does something before the decision after move `MOVE`."""

    name = "watched"
    does: ClassVar[Callable[[], object]]
    make: ClassVar[Any]

    def __init__(self, environment: MissionEnvironment) -> None:
        self._planner = self.make(environment)

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        if state.t[0] == MOVE:
            type(self).does()
        decision: Decision = self._planner.act(state, generator)
        return decision


@pytest.fixture
def hung_up() -> Iterator[Mock]:
    """What happens on SIGHUP outside a flight, instead of the end of this process."""
    handler = Mock()
    before = signal.signal(signal.SIGHUP, handler)
    yield handler
    assert signal.signal(signal.SIGHUP, before) is handler


def fly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, does: Callable[[], object], *words: str
) -> tuple[int, dict[str, Any]]:
    """Fly the only UAV of a team of one; return the exit code and its results."""
    config = config_of(folder, agents=1)
    dump_config(config, folder / "mission.yaml")
    monkeypatch.setattr(Watched, "does", staticmethod(does), raising=False)
    make = staticmethod(maker("random", config, folder))
    monkeypatch.setattr(Watched, "make", make, raising=False)
    policy = f"{Watched.__module__}.{Watched.__qualname__}"
    given = ["--uav", "1", "--policy", policy, "--config", str(folder / "mission.yaml")]
    given += ["--run-name", "one", "--time-factor", "50", "--set", f"logging.directory={folder}"]
    code = main([*given, *words])
    results = json.loads((folder / "one" / "summary.json").read_text())["results"]["uav"]
    return code, results


def test_an_interrupted_uav_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctrl_c = Mock(side_effect=KeyboardInterrupt)  # SIGINT; jobs in the background may ignore it
    code, results = fly(tmp_path, monkeypatch, ctrl_c)
    assert (code, results["left"], results["moves"]) == (130, "interrupted", MOVE)


def test_a_terminated_uav_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Mock(side_effect=AssertionError)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        code, results = fly(tmp_path, monkeypatch, partial(os.kill, os.getpid(), signal.SIGTERM))
    finally:
        assert signal.signal(signal.SIGTERM, before) is stop
    assert (code, results["left"], results["moves"]) == (130, "interrupted", MOVE)


def test_a_lost_terminal_does_not_end_a_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung_up: Mock
) -> None:
    code, results = fly(tmp_path, monkeypatch, partial(os.kill, os.getpid(), signal.SIGHUP))
    assert (code, results["left"]) == (0, "mission done")
    hung_up.assert_not_called()


def test_a_full_disk_leaves_the_record_of_a_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "one" / "uav_1"))
    monkeypatch.setattr(solo, "write_own_maps", Mock(side_effect=full))
    with pytest.raises(FileNotFoundError, match="summary"):
        fly(tmp_path, monkeypatch, lambda: None)
    printed = capsys.readouterr()
    assert "No space left" in printed.err.splitlines()[-1]
    assert "waiting until all UAVs have landed" in printed.out
    assert main(["--replay", str(tmp_path / "one")]) == 0
    assert json.loads((tmp_path / "one" / "status.json").read_text())["state"] == "failed"


def test_a_file_brings_a_uav_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, results = fly(tmp_path, monkeypatch, (tmp_path / "one" / "abort").touch)
    assert (code, results["left"]) == (0, "the file abort exists")
    assert results["moves"] <= MOVE + 1
    assert read_record(tmp_path / "one" / "flight.mcap")[0]["time_factor"] == 50
    assert main(["--replay", str(tmp_path / "one")]) == 0


def test_a_file_ends_the_wait_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    abort = tmp_path / "one" / "abort"
    monkeypatch.setattr(time, "sleep", lambda _: abort.touch(exist_ok=False))
    words = ["--uav", "1", "--of", "2", "--policy", "random", "--config", "params_test.yaml"]
    words += ["--separation", "0", "--run-name", "one", "--set", f"logging.directory={tmp_path}"]
    assert main([*words, "--listen", "tcp/127.0.0.1:0"]) == 130
    assert "abort" in capsys.readouterr().out
    assert not abort.parent.exists()


def test_a_flight_leaves_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, results = fly(tmp_path, monkeypatch, lambda: None, "--html")
    assert (code, results["left"]) == (0, "mission done")
    assert results["seconds"] > 60  # by the clock of the UAV, which is 50 times as fast
    (policy,) = data(tmp_path / "one" / "mission.html")["policies"]
    assert len(policy["f1"]) == results["moves"] + 2  # before any reading, and after each
