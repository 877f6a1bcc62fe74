from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

from marl_framework.runs import files
from marl_framework.runs.checkpoint_store import (
    CheckpointStore,
    newest_checkpoint,
    numbered_checkpoints,
)
from tests.terminal import Clock


def store_in(folder: Path, kept: int = 3, lines: list[str] | None = None) -> CheckpointStore:
    return CheckpointStore(folder, kept, [].append if lines is None else lines.append)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_minutes_count_from_the_last_attempt(tmp_path: Path) -> None:
    clock = Clock()
    store = CheckpointStore(tmp_path, 3, print, clock)
    clock.now += 90
    assert store.minutes() == 1.5
    store.save(1, {"training_step": 1})
    assert store.minutes() == 0
    clock.now += 30
    assert store.minutes() == 0.5


def test_the_newest_few_stay_and_last_is_the_newest(tmp_path: Path) -> None:
    store = store_in(tmp_path, kept=2)
    for step in (9, 10, 99999999, 100000000):  # sorted as numbers
        store.save(step, {"training_step": step})
    assert names(tmp_path) == ["last.pt", "step-100000000.pt", "step-99999999.pt"]
    assert next(path.name for path in numbered_checkpoints(tmp_path)) == "step-100000000.pt"
    assert os.path.samefile(tmp_path / "last.pt", tmp_path / "step-100000000.pt")


def test_other_files_in_the_folder_are_never_removed(tmp_path: Path) -> None:
    for name in ("step-1.pt", "step-00000001.pt.damaged", "mine.pt"):
        (tmp_path / name).write_text("")
    store = store_in(tmp_path, kept=1)
    for step in (1, 2, 3):
        store.save(step, {"training_step": step})
    kept = ["last.pt", "mine.pt", "step-00000001.pt.damaged", "step-00000003.pt", "step-1.pt"]
    assert names(tmp_path) == kept


def test_where_links_are_not_possible_last_is_a_copy(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    store = store_in(tmp_path)
    for step in (1, 2):
        assert store.save(step, {"training_step": step})
        assert newest_checkpoint(tmp_path, print)["training_step"] == step
        last = (tmp_path / "last.pt").read_bytes()
        assert last == (tmp_path / f"step-0000000{step}.pt").read_bytes()


def test_a_full_disk_keeps_the_earlier_ones_and_warns_once(tmp_path, monkeypatch) -> None:
    lines: list[str] = []
    store = store_in(tmp_path, kept=1, lines=lines)
    assert store.save(1, {"training_step": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    monkeypatch.setattr(files.os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert not store.save(2, {"training_step": 2})
    assert not store.save_best({"training_step": 2})
    assert not store.save(3, {"training_step": 3})
    assert len(lines) == 1
    assert "No space left on device; earlier checkpoints are intact" in lines[0]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert store.save(4, {"training_step": 4})
    assert names(tmp_path) == ["last.pt", "step-00000004.pt"]


def test_the_best_serves_where_nothing_newer_can_be_read(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.save_best({"training_step": 3})
    store.save(4, {"training_step": 4})
    (tmp_path / "step-00000004.pt").write_bytes(b"")  # last.pt is the same file
    lines: list[str] = []
    assert newest_checkpoint(tmp_path, lines.append)["training_step"] == 3
    assert len(lines) == 2
    assert names(tmp_path) == ["best.pt", "last.pt", "step-00000004.pt.damaged"]


def test_no_checkpoint_at_all_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path, print) is None
    assert newest_checkpoint(tmp_path / "missing", print) is None
