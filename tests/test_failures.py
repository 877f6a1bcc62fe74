"""Trainings that meet bad numbers and full disks: one line, and nothing lost."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.training.logging import TrainingLogger
from tests.running import results, run_main

SMALL = tuple(f"networks.{name}.conv_channels=2" for name in ("actor", "critic"))


@pytest.fixture
def _bad_third_step(monkeypatch: pytest.MonkeyPatch) -> None:
    real = COMAWrapper.update

    def update(coma: COMAWrapper, rollout, *rest):
        if coma.training_steps == 2:
            rollout.rewards.fill_(float("nan"))
        return real(coma, rollout, *rest)

    monkeypatch.setattr(COMAWrapper, "update", update)


@pytest.mark.usefixtures("_bad_third_step")
def test_bad_numbers_stop_the_training_with_one_line_and_a_dump(tmp_path: Path, refused) -> None:
    error = refused(run_main, tmp_path, "t", code=1)
    run = tmp_path / "runs" / "t"
    assert error.startswith("error: 4 updates up to training step 3 were skipped")
    assert "learning.max_skipped_updates allows 0" in error
    assert str(run / "not_finite.pt") in error
    dump = torch.load(run / "not_finite.pt", weights_only=True)
    assert all(value.isfinite().all() for value in dump["critic"].values())
    assert dump["metrics"]["critic_loss"] != dump["metrics"]["critic_loss"]  # NaN
    assert torch.load(run / "checkpoints" / "last.pt", weights_only=True)["training_step"] == 2
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["error"] in error


def test_a_reward_that_is_not_finite_is_named(tmp_path, refused, monkeypatch) -> None:
    text = "def nan(state, actions, utility):\n    return utility.relative * float('nan')\n"
    (tmp_path / "my_nan.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = "--set=experiment.reward.function=my_nan.nan"
    error = refused(run_main, tmp_path, "t", own, code=1)
    assert "experiment.reward.function: my_nan.nan" in error
    assert "learning_rate" not in error


@pytest.mark.usefixtures("_bad_third_step")
def test_some_bad_updates_may_be_skipped(tmp_path: Path, capsys) -> None:
    assert run_main(tmp_path, "t", "--set=learning.max_skipped_updates=4") == 0
    assert "warning: 4 updates up to training step 3" in capsys.readouterr().out
    found = results(tmp_path / "runs" / "t")
    assert found["training_steps"] == 4
    assert found["last"]["critic_loss"] > 0


@contextmanager
def file_limit(kilobytes: int) -> Iterator[None]:
    """Let no file of this process grow larger, as `ulimit -f` does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kilobytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(("kilobytes", "code"), [(8, 1), (100, 0)])
def test_a_limit_on_files_is_warned_of_and_the_run_goes_on(
    tmp_path: Path, capsys, kilobytes: int, code: int
) -> None:
    """8 kB hold no checkpoint and no log; 100 kB hold checkpoints but no figure."""
    train = partial(run_main, tmp_path, "t", sets=("logging.checkpoint_interval=1", *SMALL))
    with file_limit(kilobytes):
        assert train() == code
    out, errors = capsys.readouterr()
    assert "step 4/4" in out
    warned = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert 1 <= len(warned) <= 3
    assert all("File too large" in line for line in warned)
    assert len(errors.splitlines()) == code
    assert not list(tmp_path.rglob("*.tmp"))
    if code:
        assert train("--resume") == 0
    else:
        assert (tmp_path / "runs" / "t" / "summary.json").exists()


def test_a_log_that_cannot_be_made_is_warned_of_once(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    lines: list[str] = []
    with TrainingLogger(tmp_path / "file", report=lines.append) as logger:
        for step in (1, 2):
            counts = {"actions": torch.ones(3)}
            assert logger.log(step, {"return": torch.tensor(1.0)}, counts) == {"return": 1.0}
    assert len(lines) == 1
    assert "continues without this log" in lines[0]
    assert os.listdir(tmp_path) == ["file"]
