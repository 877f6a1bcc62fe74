"""A rank that dies ends the training with its reason; torchrun takes it up again."""

from __future__ import annotations

import json
from pathlib import Path

from marl_framework.runs.checkpoint import load_checkpoint
from tests.training.test_two_ranks import ROOT, torchrun
from tests.training.two_ranks import arguments

SCRIPT = ROOT / "tests/training/dying_rank.py"


def test_a_killed_rank_ends_the_training_with_its_reason(tmp_path: Path) -> None:
    done = torchrun(SCRIPT, 6, *arguments(tmp_path, "t"))
    assert done.returncode == 1
    assert "error: another rank ended early" in done.stderr
    assert "Signal 9 (SIGKILL)" in done.stderr  # torchrun says what became of the other
    run = tmp_path / "t"
    assert load_checkpoint(run / "checkpoints" / "last.pt")["training_step"] == 3
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "failed"
    assert "another rank" in status["error"]


def test_torchrun_starts_the_ranks_again_and_the_training_ends(tmp_path: Path) -> None:
    done = torchrun(SCRIPT, 6, *arguments(tmp_path, "t"), restarts=1)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "t" / "summary.json").read_text())["results"]
    assert results["finished"]
    assert results["training_steps"] == 8
    noted = json.loads((tmp_path / "t" / "environment.json").read_text())
    assert [entry["training_step"] for entry in noted["resumed"]] == [3]
