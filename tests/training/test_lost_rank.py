"""A rank that dies ends the training with its reason; torchrun takes it up again."""

from __future__ import annotations

import json

import pytest

from marl_framework.runs.checkpoint import load_checkpoint
from tests.training.test_two_ranks import ROOT, torchrun
from tests.training.two_ranks import arguments

SCRIPT = ROOT / "tests/training/dying_rank.py"


@pytest.mark.soak
def test_a_killed_rank_ends_the_start_with_its_reason_and_torchrun_starts_again(tmp_path) -> None:
    done = torchrun(SCRIPT, "6,8", *arguments(tmp_path, "t"), restarts=1)
    assert done.returncode == 1
    assert done.stderr.count("error: another rank ended early") == 2
    assert "Signal 9 (SIGKILL)" in done.stderr  # torchrun says what became of the other
    run = tmp_path / "t"
    noted = json.loads((run / "environment.json").read_text())
    assert [entry["training_step"] for entry in noted["resumed"]] == [3]
    assert load_checkpoint(run / "checkpoints" / "last.pt")["training_step"] == 6
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "failed"
    assert "another rank" in status["error"]
