from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_monitor import Clock

from marl_framework.config.learning import LoggingConfig
from marl_framework.runs.checkpoint_store import (
    CheckpointKeeper,
    newest_checkpoint,
    numbered_checkpoints,
)
from marl_framework.training import files


def keeper_of(folder: Path, clock: Clock | None = None, **log: Any) -> CheckpointKeeper:
    lines: list[str] = []
    keeper = CheckpointKeeper(folder, LoggingConfig(**log), lines.append, clock or Clock())
    keeper.lines = lines
    return keeper


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_checkpoints_come_by_steps_and_by_minutes(tmp_path: Path) -> None:
    clock = Clock()
    keeper = keeper_of(tmp_path, clock, checkpoint_interval=5, checkpoint_minutes=2.0)
    assert [step for step in range(1, 11) if keeper.is_due(step)] == [5, 10]
    clock.now += 119
    assert not keeper.is_due(1)
    clock.now += 1
    assert keeper.is_due(1)
    keeper.save(1, {"training_step": 1})
    assert not keeper.is_due(2)


def test_zero_means_never(tmp_path: Path) -> None:
    clock = Clock()
    keeper = keeper_of(tmp_path, clock, checkpoint_interval=0, checkpoint_minutes=0.0)
    clock.now += 1e6
    assert not keeper.is_due(7)


def test_the_newest_few_stay_and_last_is_the_newest(tmp_path: Path) -> None:
    keeper = keeper_of(tmp_path, checkpoints_kept=2)
    for step in (9, 10, 99999999, 100000000):  # sorted as numbers
        keeper.save(step, {"training_step": step})
    assert names(tmp_path) == ["last.pt", "step-100000000.pt", "step-99999999.pt"]
    assert next(path.name for path in numbered_checkpoints(tmp_path)) == "step-100000000.pt"
    assert os.path.samefile(tmp_path / "last.pt", tmp_path / "step-100000000.pt")


def test_other_files_in_the_folder_are_never_removed(tmp_path: Path) -> None:
    for name in ("step-1.pt", "step-00000001.pt.damaged", "mine.pt"):
        (tmp_path / name).write_text("")
    keeper = keeper_of(tmp_path, checkpoints_kept=1)
    for step in (1, 2, 3):
        keeper.save(step, {"training_step": step})
    kept = ["last.pt", "mine.pt", "step-00000001.pt.damaged", "step-00000003.pt", "step-1.pt"]
    assert names(tmp_path) == kept


def test_where_links_are_not_possible_last_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    keeper = keeper_of(tmp_path)
    for step in (1, 2):
        assert keeper.save(step, {"training_step": step})
        assert newest_checkpoint(tmp_path, print)["training_step"] == step
        last = (tmp_path / "last.pt").read_bytes()
        assert last == (tmp_path / f"step-0000000{step}.pt").read_bytes()


def test_a_full_disk_keeps_the_earlier_ones_and_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keeper_of(tmp_path, checkpoints_kept=1)
    assert keeper.save(1, {"training_step": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    assert not keeper.save(2, {"training_step": 2})
    assert not keeper.save_best({"training_step": 2})
    assert not keeper.save(3, {"training_step": 3})
    assert len(keeper.lines) == 1
    assert "No space left on device; earlier checkpoints are intact" in keeper.lines[0]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert keeper.save(4, {"training_step": 4})
    assert names(tmp_path) == ["last.pt", "step-00000004.pt"]


def test_the_best_serves_where_nothing_newer_can_be_read(tmp_path: Path) -> None:
    keeper = keeper_of(tmp_path)
    keeper.save_best({"training_step": 3})
    keeper.save(4, {"training_step": 4})
    (tmp_path / "step-00000004.pt").write_bytes(b"")  # last.pt is the same file
    lines: list[str] = []
    assert newest_checkpoint(tmp_path, lines.append)["training_step"] == 3
    assert len(lines) == 2
    assert names(tmp_path) == ["best.pt", "last.pt", "step-00000004.pt.damaged"]


def test_no_checkpoint_at_all_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path, print) is None
    assert newest_checkpoint(tmp_path / "missing", print) is None
