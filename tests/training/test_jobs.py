"""Several trainings at once: what each would be alone, signals, and processes that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
import torch

from marl_framework.main import main

Train = Callable[..., int]
LONG = ("--set", "learning.training_steps=100000")


def arguments(folder: Path, seeds: str, *more: str) -> list[str]:
    runs = f"logging.directory={folder / 'runs'}"
    given = ["--config", "params_test.yaml", "--device", "cpu", "--set", runs]
    return [*given, "--set", "logging.checkpoint_interval=1", "--seeds", seeds, *more]


class Started:
    """A command with two jobs, whose lines are read as they come; ends with the `with` block."""

    def __init__(self, folder: Path, seeds: str, *more: str) -> None:
        command = [sys.executable, "-m", "marl_framework.main", *arguments(folder, seeds, *more)]
        self.process = subprocess.Popen(
            [*command, "--run-name", "t", "--jobs", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        self.lines: Iterator[str] = iter(self.process.stdout)
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # its trainings follow
        self.end()

    def until(self, *wanted: str) -> None:
        """Read until all of these have come."""
        for line in self.lines:
            self.text += line
            if all(text in self.text for text in wanted):
                return
        pytest.fail(self.text)

    def end(self) -> int:
        """Read the rest, until no process holds the output any more; return the exit code."""
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.text += "".join(self.lines)
            self.process.stdout.close()
        return self.process.wait()


def results(folder: Path, name: str) -> dict:
    return json.loads((folder / "runs" / name / "summary.json").read_text())["results"]


def test_runs_at_once_are_what_each_is_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    steps = ("--set", "learning.training_steps=2")
    together, alone = tmp_path / "together", tmp_path / "alone"
    assert main([*arguments(together, "3,4", *steps), "--run-name", "t", "--jobs", "2"]) == 0
    assert "2 seeds: mean" in capsys.readouterr().out
    assert main([*arguments(alone, "3,4", *steps), "--run-name", "t"]) == 0
    for name in ("t-3", "t-4"):
        assert results(together, name) == results(alone, name)
        log = (together / "runs" / name / "train.log").read_text()
        assert "\nstep 2/2 | " in log
        noted = json.loads((together / "runs" / name / "environment.json").read_text())
        assert "spawn" not in noted["command"]
    assert results(together, "t-3") != results(together, "t-4")


def test_a_killed_run_stops_no_other_and_a_signal_ends_all_which_go_on(tmp_path: Path) -> None:
    with Started(tmp_path, "3,4,5", *LONG) as started:
        started.until("t-3 | step", "t-4 | step")
        status = json.loads((tmp_path / "runs" / "t-3" / "status.json").read_text())
        os.kill(status["process"]["number"], signal.SIGKILL)
        started.until("error: t-3: its process was killed by signal 9", "t-5 | step")
        started.process.send_signal(signal.SIGTERM)
        assert started.end() == 130
    assert started.text.count("continue with --resume") == 2
    assert "Traceback" not in started.text
    assert results(tmp_path, "t-4")["training_steps"] >= 1
    made = results(tmp_path, "t-5")["training_steps"]
    steps = f"learning.training_steps={made + 1}"
    more = ("--resume", "--allow-changed", "learning.training_steps", "--set", steps)
    with Started(tmp_path, "5", *more) as started:
        assert started.end() == 0
    assert results(tmp_path, "t-5")["training_steps"] == made + 1


def test_runs_end_with_the_command_that_started_them(tmp_path: Path) -> None:
    with Started(tmp_path, "3,4", *LONG) as started:
        started.until("t-3 | step", "t-4 | step")
        started.process.kill()
    for name in ("t-3", "t-4"):
        status = json.loads((tmp_path / "runs" / name / "status.json").read_text())
        assert status["state"] == "interrupted"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("--seeds", "3,4", "--jobs", "0"), "--jobs 0: give a number of trainings"),
        (("--jobs", "2"), "--jobs 2: goes with --seeds"),
    ],
)
def test_bad_jobs_are_one_line(
    given: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = arguments(tmp_path, "3")[:-2]
    assert main([*options, "--run-name", "t", *given]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
