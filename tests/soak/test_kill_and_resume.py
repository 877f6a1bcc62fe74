"""Trainings survive being killed at random moments.

Each is killed with SIGKILL and resumed until it ends by itself. Its weights and results must equal
those of an uninterrupted run, every checkpoint must be readable, and no other file may be left.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from marl_framework.runs.checkpoint import load_checkpoint
from tests.running import results
from tests.soak.commands import TIMES, start, training

pytestmark = pytest.mark.soak
MOST_KILLS = 200
READY = b"run folder:"
MAY_DIFFER = {"uncommitted.diff"}  # depends on edits of the checkout


def train(folder: Path, name: str, delay: float | None) -> tuple[bool, float]:
    """Train or resume; return whether it ended by itself, and the training time [s].

    Args:
        folder: parent of `runs/`.
        name: of the run.
        delay: seconds until the kill, from the start of the training, or of the process if
            negative; None for no kill.
    """
    kept = "logging.checkpoints_kept=2"
    process = start([*training(name, kept), "--resume"], folder)
    assert process.stdout is not None
    if delay is None or delay >= 0:
        for line in process.stdout:
            if line.startswith(READY):
                break
    began = time.monotonic()
    if delay is not None:
        time.sleep(abs(delay))
        process.kill()
    said = process.communicate()[1].decode()
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode == 0, time.monotonic() - began


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return the run of an uninterrupted training, and its time [s]."""
    folder = tmp_path_factory.mktemp("whole")
    return folder / "runs" / "whole", train(folder, "whole", None)[1]


@pytest.mark.parametrize("number", range(2 * TIMES))
def test_a_killed_training_ends_like_one_that_was_not(
    number: int, whole: tuple[Path, float], tmp_path: Path
) -> None:
    expected, seconds = whole
    moments = random.Random(number)
    for start_number in range(MOST_KILLS + 1):
        # One in five dies during its start, the others while they train.
        early = moments.random() < 0.2
        delay = -moments.uniform(0.01, 4) if early else moments.uniform(0, 1.2 * seconds)
        if train(tmp_path, "killed", delay if start_number < MOST_KILLS else None)[0]:
            break
    run = tmp_path / "runs" / "killed"
    assert results(run) == results(expected)
    for path in (run / "checkpoints").iterdir():
        load_checkpoint(path)
    for folder in (".", "checkpoints"):
        names, wanted = ({p.name for p in (of / folder).iterdir()} for of in (run, expected))
        assert names - MAY_DIFFER == wanted - MAY_DIFFER
    assert [path.name for path in run.parent.iterdir()] == ["killed"]
