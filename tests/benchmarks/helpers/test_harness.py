"""Timing, memory, utilisation, processes and JSON."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest

from benchmarks.helpers import harness, processes
from tests.benchmarks.helpers.waiting import wait_and_repeat


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([3.0], (3, 3, 3)), ([4.0, 2.0], (2.5, 3, 3.5)), ([7.0, 1.0, 2.0, 100.0], (1.75, 4.5, 30.25))],
)
def test_quartiles(samples, expected):
    assert harness.quartiles(samples) == pytest.approx(expected)


class Work:
    """Takes the given durations, by its own clock."""

    def __init__(self, *durations: float) -> None:
        self.now, self.calls, self._durations = 0.0, 0, durations

    def __call__(self) -> None:
        self.now += self._durations[min(self.calls, len(self._durations) - 1)]
        self.calls += 1

    def measure(self, seconds: float, **options: Any) -> harness.Timing:
        return harness.measure(self, seconds, clock=lambda: self.now, **options)


def test_warm_up_does_not_count_and_repeats_are_limited():
    work = Work(50, 50, 1, 2, 3, 4)
    timing = work.measure(10, warm_up=2)
    assert timing == harness.Timing(median=2.5, lower=1.75, upper=3.25, repeats=4)
    assert work.calls == 6
    assert Work(100).measure(1, least=3).repeats == 3
    assert Work(0).measure(1).repeats == 10_000


def test_time_of_one_of_many():
    assert harness.Timing(8, 4, 16, 5).per(4) == harness.Timing(2, 1, 4, 5)


def test_bandwidth_counts_both_ways(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(harness.time, "perf_counter", lambda: float(next(ticks)))
    assert harness.memory_bandwidth(harness.CPU, size=1000) == 2000


def test_work_is_done_in_other_processes_at_once():
    """Each waits for the other, so a single process would never end."""
    found = processes.run_at_once(wait_and_repeat, [(1,), (2,)])
    assert [number for number, _ in found] == [1, 2]
    assert len({os.getpid(), *(process for _, process in found)}) == 3


def test_busy_cores_are_read_from_the_system(tmp_path):
    times = tmp_path / "stat"
    times.write_text("cpu  100 0 0 800 100 0 0 0 0 0\ncpu0 1\n")
    reader = harness.CpuReader(times)
    times.write_text("cpu  160 0 0 830 110 0 0 0 0 0\ncpu0 1\n")
    assert reader() == {"utilization": pytest.approx(0.6)}


def test_peak_memory_includes_freed_memory_until_it_is_reset():
    size = 64 * 2**20
    block = mmap.mmap(-1, size)  # malloc may have resident memory left
    np.frombuffer(block, np.uint8)[:] = 1
    held = harness.process_memory("VmRSS")  # the system may take back other pages at any time
    block.close()
    assert harness.peak_memory(harness.CPU) >= held - 0.1 * size  # the two are counted apart
    assert harness.process_memory("VmRSS") <= held - 0.9 * size
    harness.reset_peak_memory(harness.CPU)
    assert harness.peak_memory(harness.CPU) <= held - 0.5 * size


def test_commands_name_no_folder_of_this_machine():
    given = ["-m", "a.b", "--out", "/data/x/r.json", "--runs=/data/a,/data/b", "1/2", "p/q"]
    kept = ["-m", "a.b", "--out", "r.json", "--runs=a,b", "1/2", "p/q"]
    assert harness.without_folders(given) == kept
