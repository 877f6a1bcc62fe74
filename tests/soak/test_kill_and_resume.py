"""One of the kills that `tests.soak.kill_and_resume` makes many of."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from marl_framework.main import main
from tests.soak import kill_and_resume as soak
from tests.soak.kill_and_resume import check, command

train = soak.train


def train_here(runs: Path, name: str, delay: float | None) -> tuple[bool, float]:
    """Start a process only to kill it; each start takes seconds."""
    if delay is not None:
        return train(runs, name, delay)
    arguments = command(runs, name)
    began = time.monotonic()
    assert main(arguments[arguments.index("marl_framework.main") + 1 :]) == 0
    return True, time.monotonic() - began


def test_a_killed_training_ends_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "train", train_here)
    runs = tmp_path / "runs"
    assert soak.kill_and_resume(runs, 1, seed=29, most_kills=1) == []
    # The check itself sees what is wrong.
    run = runs / "killed-0"
    (run / "checkpoints" / "step-00000004.pt").write_bytes(b"")
    summary = (run / "summary.json").read_text()
    (run / "summary.json").write_text(
        summary.replace('"weights_sha256": "', '"weights_sha256": "x')
    )
    (run / ".left.tmp").write_text("")
    problems = " ".join(check(run, runs / "whole"))
    for named in ("results differ", "it is damaged", "holds"):
        assert named in problems
