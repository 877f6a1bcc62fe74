"""Trainings beside others."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.speed import busy_machine
from marl_framework import device
from tests.benchmarks.running import refusal, run

pytestmark = pytest.mark.usefixtures("quick")


def test_a_training_beside_a_busy_process_is_timed(tmp_path, capsys, monkeypatch):
    rows = {"beside a busy process": (1, 1, False)}
    monkeypatch.setattr(busy_machine, "ROWS", rows)
    # Threads in place of processes, which load PyTorch anew.
    monkeypatch.setattr(
        busy_machine,
        "ProcessPoolExecutor",
        lambda number, _, *start: ThreadPoolExecutor(number, "training", *start),
    )
    found = run(busy_machine, tmp_path)
    (row,) = found["rows"]
    assert row["name"] == "beside a busy process"
    assert len(row["agent_transitions_per_s"]) == 1
    assert row["agent_transitions_per_s"][0] > 0
    assert "threads share the batch" in capsys.readouterr().out


def test_rows_are_compared_with_the_first(tmp_path, monkeypatch):
    speeds = {(1, 0): [100.0], (2, 0): [50.0, 30.0], (1, 1): [60.0]}
    threads = []

    def measure(config, device, trainings, loops, *_):
        threads.append(os.environ.get("OMP_NUM_THREADS"))
        return speeds[trainings, loops]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(busy_machine, "measure", measure)
    monkeypatch.setattr(device, "usable_cores", lambda: 6)
    found = run(busy_machine, tmp_path, "--threads-share", "operations")
    assert [row["share_of_alone"] for row in found["rows"]] == pytest.approx([1, 0.4, 0.4, 0.6])
    assert threads == [None, None, "3", None]
    assert found["settings"]["threads_share"] == "operations"


def test_bad_input_is_one_line(tmp_path, capsys):
    assert "--seconds-per-row" in refusal(busy_machine, tmp_path, capsys, "--seconds-per-row", "0")
