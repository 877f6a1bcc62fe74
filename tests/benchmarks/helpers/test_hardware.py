"""What the machine reports, and the memory that a benchmark takes."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from benchmarks.helpers import hardware
from benchmarks.helpers.harness import CPU


def test_busy_cores_are_read_from_the_system(tmp_path, monkeypatch):
    times = tmp_path / "stat"
    monkeypatch.setattr(hardware, "_CPU_TIMES", times)
    times.write_text("cpu  100 0 0 800 100 0 0 0 0 0\ncpu0 1\n")
    reader = hardware.CpuReader()
    times.write_text("cpu  160 0 0 830 110 0 0 0 0 0\ncpu0 1\n")
    assert reader() == {"utilization": pytest.approx(0.6)}


def test_peak_memory_notices_what_is_given_back_and_starts_anew():
    size = 64 * 2**20
    block = mmap.mmap(-1, size)  # malloc may have memory left that is resident already
    np.frombuffer(block, np.uint8)[:] = 1
    held = hardware.held_memory(CPU)  # the system may take back other pages at any time
    block.close()
    assert hardware.peak_memory(CPU) >= held - 0.1 * size  # the two are counted apart
    assert hardware.held_memory(CPU) <= held - 0.9 * size
    hardware.reset_peak_memory(CPU)
    assert hardware.peak_memory(CPU) <= held - 0.5 * size
