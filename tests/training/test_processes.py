"""Several runs as commands in processes of their own: exit codes, signals, processes that die."""

from __future__ import annotations

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

from marl_framework.command_line import usable_cores
from marl_framework.training.processes import run_commands

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

    def until(self, count: int) -> None:
        """Read until so many trainings wait for a signal."""
        while len(self.trainings) < count:
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
        self._guard.cancel()
        self._kill()
        self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_run_that_fails_stops_no_other(jobs: str) -> None:
    runs = ("a=refuses", "b=raises", "c=dies", "d=done")
    with Started(jobs, *runs, OMP_NUM_THREADS="5") as series:
        assert series.end() == 2
    assert "codes {'a': 2, 'b': 1, 'c': 1, 'd': 0}" in series.text
    assert re.search("error: b: .*\n", series.text)
    assert re.search(r"error: c: .*\b9\n", series.text)
    assert "done: 5, None\n" in series.text
    assert re.findall("training: (.)", series.text) == ["a", "b", "c", "d"]
    assert "Traceback" not in series.text


def test_runs_at_once_share_the_cores() -> None:
    with Started("2", "a=done", "b=done", "c=done") as series:
        assert series.end() == 0
    share = max(1, usable_cores() // 2)
    assert series.text.count(f"done: {share}, {share}\n") == 3


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_all_after_their_steps(number: signal.Signals, jobs: str) -> None:
    with Started(jobs, "a=hears", "b=hears", "c=done") as series:
        series.until(int(jobs))
        for training in series.trainings:  # a scheduler sends it to all
            os.kill(training, number)
        series.process.send_signal(number)
        assert series.end() == 130
    assert series.text.count("ended after its step") == int(jobs)
    assert "'c': 130" in series.text
    assert "training: c" not in series.text
    assert "Traceback" not in series.text


@pytest.mark.parametrize(("jobs", "second"), [(1, 130), (2, 0)])
def test_no_run_starts_after_one_was_interrupted(jobs: int, second: int) -> None:
    slow = [sys.executable, "-c", "import torch"]  # still runs when the first has ended
    commands = {"a": ["sh", "-c", "exit 130"], "b": slow, "c": ["true"]}
    assert run_commands(commands, jobs) == {"a": 130, "b": second, "c": 130}


def test_a_killed_run_is_reported_also_when_a_signal_follows() -> None:
    with Started("2", "a=hears", "b=hears") as series:
        series.until(2)
        series.process.send_signal(signal.SIGSTOP)  # else it may be over before it hears
        os.kill(series.trainings[0], signal.SIGKILL)
        series.process.send_signal(signal.SIGTERM)
        series.process.send_signal(signal.SIGCONT)
        assert series.end() == 130
    assert sorted(re.findall(r"'.': (\d+)", series.text)) == ["1", "130"]


def test_a_second_signal_ends_all_at_once() -> None:
    with Started("2", "a=works", "b=works", "c=done") as series:
        series.until(2)
        series.process.send_signal(signal.SIGINT)
        series.process.send_signal(signal.SIGTERM)
        assert series.end() == 130
    assert "ended after its step" not in series.text
    assert series.text.count("interrupted\n") == 2
    assert "codes {'a': 130, 'b': 130, 'c': 130}" in series.text


def test_nobody_has_to_read_what_they_print() -> None:
    command = f"exec {sys.executable} -m tests.training.series 2 a=done b=done >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, check=False).returncode == 0
