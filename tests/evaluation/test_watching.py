"""Following a training: each newer team once, and the last one, to the end."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from marl_framework import evaluate
from marl_framework.evaluate import latest_teams
from marl_framework.main import main
from marl_framework.runs.files import write_json
from marl_framework.runs.lock import RunLock


def checkpoint(run: Path, time: int) -> None:
    path = run / "checkpoints" / "last.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(time))
    os.utime(path, (time, time))


def watch(run: Path) -> dict[str, Any]:
    assert evaluate.main(["--watch", str(run), "--missions", "2", "--no-figures"]) == 0
    found: dict[str, Any] = json.loads((run / "watch" / "results.json").read_text())
    return found


def test_each_newer_team_is_handed_over_once_to_the_end(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)

    def no_news() -> None: ...

    def end() -> None:
        checkpoint(tmp_path, 3)
        write_json(tmp_path / "status.json", {"state": "finished"})
        lock.release()

    first, second = (functools.partial(checkpoint, tmp_path, time) for time in (1, 2))
    steps = [no_news, first, no_news, second, end]
    found = [path.read_text() for path in latest_teams(tmp_path, lambda _: steps.pop(0)())]
    assert found == ["1", "2", "3"]
    assert steps == []
    assert len(list(latest_teams(tmp_path))) == 1  # a run that has ended is shown once


def test_a_run_that_is_watched_stays_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = ["--config", "params_test.yaml", "--device", "cpu", "--run-name", "t"]
    assert main([*train, "--set", "learning.training_steps=2"]) == 0
    assert list(watch(Path("runs/t"))["policies"]) == ["learned"]
    page = Path("runs/t/watch/mission.html").read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="20">' in page
    assert main([*train, "--resume", "--allow-changed", "learning.training_steps"]) == 0
    assert watch(Path("runs/t"))["settings"]["training_step"] == 4
