"""Timing, the machine, tables and JSON."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

from benchmarks.helpers import harness
from tests.benchmarks.running import read_strict


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([3.0], (3, 3, 3)),
        ([4.0, 2.0], (2.5, 3, 3.5)),
        ([5.0, 1.0, 3.0, 2.0, 4.0], (2, 3, 4)),
        ([7.0, 1.0, 2.0, 100.0], (1.75, 4.5, 30.25)),
    ],
)
def test_quartiles(samples, expected):
    assert harness.quartiles(samples) == pytest.approx(expected)
    assert harness.quartiles(samples) == pytest.approx(np.quantile(samples, [0.25, 0.5, 0.75]))


def test_no_samples_have_no_quartiles():
    with pytest.raises(ValueError, match="no samples"):
        harness.quartiles([])


def test_commands_name_no_folder_of_this_machine():
    given = [
        "-m",
        "a.b",
        "--out",
        "/data/x/r.json",
        "--runs=/data/a,/data/b",
        "--ratio",
        "1/2",
        "p/q",
    ]
    kept = ["-m", "a.b", "--out", "r.json", "--runs=a,b", "--ratio", "1/2", "p/q"]
    assert harness.without_folders(given) == kept


class Work:
    """Takes as long as it is told to, by a clock that nobody else moves."""

    def __init__(self, *durations: float) -> None:
        self.now, self.calls, self._durations = 0.0, 0, durations

    def __call__(self) -> None:
        self.now += self._durations[min(self.calls, len(self._durations) - 1)]
        self.calls += 1

    def measure(self, seconds: float, **options: Any) -> harness.Timing:
        return harness.measure(self, seconds, clock=lambda: self.now, **options)


def test_warm_up_does_not_count():
    work = Work(50, 50, 1, 2, 3, 4)
    timing = work.measure(10, warm_up=2)
    assert timing == harness.Timing(median=2.5, lower=1.75, upper=3.25, repeats=4)
    assert work.calls == 6


def test_slow_work_is_repeated_a_few_times_all_the_same():
    assert Work(100).measure(1, least=3).repeats == 3


def test_work_without_duration_ends():
    assert Work(0).measure(1).repeats == 10_000


def test_time_of_one_of_many():
    assert harness.Timing(8, 4, 16, 5).per(4) == harness.Timing(2, 1, 4, 5)


def test_bandwidth_counts_both_ways(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(harness.time, "perf_counter", lambda: float(next(ticks)))
    assert harness.memory_bandwidth(harness.CPU, size=1000) == 2000


def test_work_is_done_in_another_process():
    assert harness.in_fresh_process(os.getpid) != os.getpid()


def test_json_is_strict(tmp_path):
    path = tmp_path / "a.json"
    harness.write_json(path, "suite", {"rows": [{"a": math.nan, "b": math.inf, "c": (1, 2.5)}]})
    assert read_strict(path) == {
        "schema": harness.SCHEMA,
        "suite": "suite",
        "rows": [{"a": None, "b": "inf", "c": [1, 2.5]}],
    }
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (2.0, "2 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 µs"), (7.89e-9, "7.89 ns"),
     (9.996e-4, "1 ms"), (0.9999, "1 s"), (-3.4e-3, "−3.4 ms")],
)  # fmt: skip
def test_durations_read_well(seconds, text):
    assert harness.duration_text(seconds) == text
