"""Trainings next to other programs."""

from __future__ import annotations

import os

import pytest

from benchmarks.speed import busy_machine
from marl_framework.training import processes
from tests.benchmarks.running import positive, run

pytestmark = pytest.mark.usefixtures("here")


def test_a_training_next_to_a_busy_process_is_timed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(busy_machine, "ROWS", {"beside a busy process": (1, 1, False)})
    (row,) = run(busy_machine, tmp_path)["rows"]
    assert row["name"] == "beside a busy process"
    assert positive(row["agent_transitions_per_s"])
    assert row["name"] in capsys.readouterr().out


def test_rows_are_compared_with_the_first(tmp_path, monkeypatch):
    speeds = {(1, 0): [100.0], (2, 0): [50.0, 30.0], (1, 1): [60.0]}
    threads = []

    def measure_row(job, trainings, loops):
        threads.append(os.environ.get("OMP_NUM_THREADS"))
        return speeds[trainings, loops]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(busy_machine, "measure_row", measure_row)
    monkeypatch.setattr(processes, "usable_cores", lambda: 6)
    found = run(busy_machine, tmp_path)
    assert [row["share_of_alone"] for row in found["rows"]] == pytest.approx([1, 0.4, 0.4, 0.6])
    assert threads == [None, None, "3", None]
