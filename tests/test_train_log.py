"""What a training prints is in the log of its run; an earlier run moves away first."""

import errno
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from marl_framework.main import main
from marl_framework.runs.lock import RunLock
from marl_framework.training.trainer import Trainer
from tests.running import run_main
from tests.terminal import Terminal
from tests.training.steps import at_step

Train = Callable[..., int]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train two steps of params_test.yaml into tmp_path/runs/t; returns the exit code."""
    return partial(run_main, tmp_path, "t", "--set=learning.training_steps=2")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "t" / "train.log"


def raise_in_step_2(monkeypatch: pytest.MonkeyPatch, problem: Callable[[], None]) -> None:
    monkeypatch.setattr(Trainer, "make_steps", at_step(2, lambda _: problem()))


def test_the_log_holds_what_was_printed(train: Train, log: Path, capsys) -> None:
    assert train("--set", "networks.gamma=0.9") == 0
    out, err = capsys.readouterr()
    assert err.startswith("warning: ")
    assert log.read_text() == err + out


def test_resuming_appends_and_a_refusal_writes_nothing(train: Train, log: Path, capsys) -> None:
    assert train() == 0
    before = log.read_text()
    assert train("--resume", "--set", "learning.gamma=0.5") == 2
    assert train("--resume") == 0  # finished already: nothing is touched
    assert log.read_text() == before
    capsys.readouterr()
    longer = ("--set", "learning.training_steps=3", "--allow-changed", "learning.training_steps")
    assert train("--resume", *longer) == 0
    assert log.read_text() == before + capsys.readouterr().out


def test_a_traceback_is_in_the_log(train: Train, log: Path, monkeypatch) -> None:
    def problem() -> None:
        raise RuntimeError("a mistake of ours")

    raise_in_step_2(monkeypatch, problem)
    before = sys.stdout, sys.stderr
    with pytest.raises(RuntimeError):
        train()
    assert (sys.stdout, sys.stderr) == before
    lines = log.read_text().splitlines()
    assert "Traceback (most recent call last):" in lines
    assert lines[-1] == "RuntimeError: a mistake of ours"


def test_a_terminal_shows_a_block_and_the_log_has_lines(train, log, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    raise_in_step_2(monkeypatch, lambda: print("by the way"))
    assert train() == 0
    text = log.read_text()
    assert "\x1b" in screen.getvalue()
    assert "\x1b" not in text
    steps = [line for line in text.splitlines() if line.startswith("step ")]
    assert [line.partition(" | ")[0] for line in steps] == ["step 1/2", "step 2/2"]
    for line in ("by the way", "run folder: "):
        assert text.count(line) == 1
        assert line in screen.getvalue()


@pytest.mark.parametrize(
    ("tty", "number"), [(False, errno.EPIPE), (True, errno.EIO), (False, errno.ENOSPC)]
)
def test_a_training_outlives_its_screen(
    tty: bool, number: int, train: Train, log: Path, monkeypatch
) -> None:
    class Closed(io.StringIO):
        def isatty(self) -> bool:
            return tty

        def flush(self) -> None:
            raise OSError(number, "nobody reads")

        def write(self, text: str) -> int:
            self.flush()
            return 0

        def fileno(self) -> int:
            raise io.UnsupportedOperation

    monkeypatch.setattr(sys, "stdout", Closed())
    monkeypatch.setenv("TERM", "xterm")
    assert train() == 0
    assert log.read_text().splitlines()[-1].startswith("done: ")


def test_a_log_that_cannot_be_written_is_one_warning(train: Train, log: Path, capsys) -> None:
    log.mkdir(parents=True)
    assert train("--resume") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line for line in out.splitlines() if line.startswith("warning: ")] == [
        f"warning: {log} could not be written: Is a directory; the run continues"
    ]


def test_a_closing_terminal_is_one_signal(train: Train, log: Path, monkeypatch, capsys) -> None:
    def problem() -> None:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)

    raise_in_step_2(monkeypatch, problem)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    assert train("--set", "learning.training_steps=9") == 130
    assert capsys.readouterr().err.startswith("interrupted; ")
    assert json.loads((log.parent / "status.json").read_text())["training_step"] == 2


def test_nohup_stays_as_it_is(train: Train, monkeypatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_in_step_2(monkeypatch, lambda: signal.raise_signal(signal.SIGHUP))
    assert train("--set", "learning.training_steps=3") == 0


def earlier_run(log: Path) -> Path:
    log.parent.mkdir(parents=True)
    log.write_text("old\n")
    (log.parent / "status.json").write_text('{"state": "training", "training_step": 6}')
    return log.parent


def test_an_earlier_run_moves_to_the_history_each_time(train, log, tmp_path, capsys) -> None:
    earlier_run(log)
    (tmp_path / "runs" / "other").mkdir()
    for count in (1, 2, 3):  # in one second too: no copy replaces another
        assert train("--archive-earlier") == 0
        kept = sorted((tmp_path / "training_history" / "t").iterdir())
        assert len(kept) == count
    (first,) = [path for path in kept if (path / "train.log").read_text() == "old\n"]
    assert f"The earlier run 't' is now in {first}" in capsys.readouterr().out
    known = json.loads((first / "metadata.json").read_text())
    assert (known["name"], known["state"], known["training_step"]) == ("t", "killed", 6)
    assert sorted(os.listdir(tmp_path / "runs")) == ["other", "t"]


def test_an_earlier_flight_moves_too(train: Train, log: Path, tmp_path: Path) -> None:
    earlier_run(log)
    fly = ("--set=experiment.policy=random", "--set=experiment.baselines.random.missions=1")
    assert train("--archive-earlier", *fly) == 0
    assert len(list((tmp_path / "training_history" / "t").iterdir())) == 1
    assert (log.parent / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--check",), 0),
        (("--print-config",), 0),
        (("--resume",), 0),
        (("--resume", "--set", "experiment.policy=random"), 2),  # flights do not resume
        (("--set", "learning.gamma=2"), 2),
        (("--set", "networks.no=1"), 2),
        (("--device", "cuda:99"), 2),
        (("--profile", "-1"), 2),
        (("--run-name", "a b"), 2),
    ],
)
def test_nothing_moves_without_a_new_training(
    arguments: tuple[str, ...], code: int, train: Train, log: Path, tmp_path: Path, capsys
) -> None:
    earlier_run(log)
    assert train("--archive-earlier", *arguments) == code
    assert log.read_text().startswith("old\n")
    assert (log.read_text() == "old\n") == (arguments != ("--resume",))
    assert os.listdir(tmp_path) == ["runs"]
    assert os.listdir(tmp_path / "runs") == ["t"]
    assert capsys.readouterr().err.count("\n") == (code == 2)


def test_a_run_in_training_is_refused(train: Train, log: Path, tmp_path: Path, refused) -> None:
    lock = RunLock(earlier_run(log))
    assert "run name t" in refused(train, "--archive-earlier")
    lock.release()
    assert log.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["runs"]


def test_a_history_that_cannot_be_written_stops_the_start(train, log, tmp_path, refused) -> None:
    earlier_run(log)
    (tmp_path / "training_history").write_text("a file, not a folder")
    refused(train, "--archive-earlier")
    assert log.read_text() == "old\n"
    assert not (log.parent / "checkpoints").exists()


def test_a_run_to_archive_needs_a_name(refused) -> None:
    assert "--archive-earlier" in refused(main, ["--config", "params_test", "--archive-earlier"])
