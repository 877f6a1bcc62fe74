"""Several trainings at once: what each would be alone, signals, and processes that die."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Self

import pytest

from marl_framework.device import usable_cores
from marl_framework.main import main

PATIENCE = 60.0  # seconds, after which a test has failed
ROOT = Path(__file__).parents[2]


class Started:
    """A series whose lines are read as they come; it ends with the `with` block."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        threads = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
        known = {name: value for name, value in os.environ.items() if name not in threads}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.series", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**known, **environment},
        )
        assert self.process.stdout is not None
        self._lines: Iterator[str] = iter(self.process.stdout)
        self.text = ""
        self._guard = Timer(PATIENCE, self._kill)

    @property
    def trainings(self) -> list[int]:
        """Their processes, as far as they have said so."""
        return [int(number) for number in re.findall(r"process (\d+) trains", self.text)]

    def until(self, *wanted: str) -> None:
        """Read until all of these have come."""
        while not all(text in self.text for text in wanted):
            line = next(self._lines, None)
            assert line is not None, self.text
            self.text += line

    def end(self) -> int:
        """Read the rest, until no process holds the output any more; return the exit code."""
        self.text += "".join(self._lines)
        return self.process.wait()

    def _kill(self) -> None:
        self.text += "took too long\n"
        for number in (*self.trainings, self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def __enter__(self) -> Self:
        self._guard.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # its trainings follow
        self.end()
        self._guard.cancel()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert "took too long" not in self.text


def test_what_goes_wrong_in_a_run_stops_no_other() -> None:
    with Started("2", "a=lacks", "b=breaks", "c=dies", "d=done", OMP_NUM_THREADS="5") as series:
        assert series.end() == 2
    text = series.text
    assert "a | error: sensor: broken\n" in text
    assert "b | RuntimeError: broken\n" in text
    assert "error: c: its process was killed by signal 9\n" in text
    assert "d | done: 5 threads, None of numba, terminal: False\nd | no line end\n" in text
    assert re.findall("next: (.)", text) == ["a", "b", "c", "d"]
    with Started("1", "a=lacks", "b=breaks", "d=done") as series:
        assert series.end() == 2
    assert "RuntimeError: broken\n" in series.text
    assert "done: " in series.text


def test_runs_at_once_share_the_cores() -> None:
    with Started("2", "a=done", "b=done", "c=done") as series:
        assert series.end() == 0
    share = max(1, usable_cores() // 2)
    assert series.text.count(f"done: {share} threads, {share} of numba") == 3


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(signal.SIGUSR1, marks=pytest.mark.soak),
    ],
)
def test_a_signal_ends_all_after_their_steps(number: signal.Signals) -> None:
    with Started("2", "a=hears", "b=hears", "c=done") as series:
        series.until("a | process", "b | process")
        for training in series.trainings:  # a scheduler sends it to all
            os.kill(training, number)
        series.process.send_signal(number)
        assert series.end() == 130
    assert series.text.count("ended after its step") == 2
    assert "next: c" not in series.text
    assert "Traceback" not in series.text


def test_a_killed_run_is_told_also_when_a_signal_follows() -> None:
    with Started("2", "a=hears", "b=done") as series:
        series.until("a | process", "b | no line end")
        series.process.send_signal(signal.SIGSTOP)  # else it may be over before it hears
        os.kill(series.trainings[0], signal.SIGKILL)
        series.process.send_signal(signal.SIGTERM)
        series.process.send_signal(signal.SIGCONT)
        assert series.end() == 1
    assert "error: a: its process was killed by signal 9" in series.text


def test_a_run_that_is_done_stays_done() -> None:
    with Started("2", "a=signalled", "b=done") as series:
        assert series.end() == 0
    assert series.text.count("no line end") == 2


@pytest.mark.parametrize(
    "ignored",
    [
        "",
        pytest.param("SIGINT", marks=pytest.mark.soak),
        pytest.param("SIGUSR1", marks=pytest.mark.soak),
    ],
)
def test_a_second_signal_ends_all_at_once(ignored: str) -> None:
    with Started("2", "a=works", "b=works", IGNORED=ignored) as series:
        series.until("a | process", "b | process")
        series.process.send_signal(signal.SIGINT)
        series.process.send_signal(signal.SIGTERM)
        assert series.end() == 130
    assert "ended after its step" not in series.text
    assert series.text.count("interrupted") == 2


def test_runs_end_with_the_command_that_started_them() -> None:
    with Started("2", "a=hears", "b=hears") as series:
        series.until("a | process", "b | process")
        series.process.kill()
        series.end()
        assert series.text.count("ended after its step") == 2


def test_nobody_has_to_read_what_they_print() -> None:
    command = f"exec {sys.executable} -m tests.training.series 2 a=done b=done >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, check=False).returncode == 0


def test_runs_at_once_are_what_each_is_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(folder: Path, *more: str) -> dict[str, dict]:
        given = ["--config", "params_test.yaml", "--device", "cpu", "--max-episodes", "2"]
        runs = ["--set", f"logging.directory={folder}", "--run-name", "t", "--seeds", "3,4"]
        assert main([*given, *runs, *more]) == 0
        assert "2 seeds: mean" in capsys.readouterr().out
        summaries = {
            name: json.loads((folder / name / "summary.json").read_text())
            for name in ("t-3", "t-4")
        }
        return {name: summary["results"] for name, summary in summaries.items()}

    together = train(tmp_path / "together", "--jobs", "2")
    assert together == train(tmp_path / "alone")
    assert together["t-3"] != together["t-4"]
    run = tmp_path / "together" / "t-3"
    assert "\nstep 2/2 | " in (run / "train.log").read_text()
    assert "spawn" not in json.loads((run / "environment.json").read_text())["command"]


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
    runs = f"logging.directory={tmp_path}"
    options = ["--config", "params_test.yaml", "--set", runs, "--run-name", "t"]
    assert main([*options, *given]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
