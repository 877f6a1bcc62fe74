"""Reported and real utilisation."""

from __future__ import annotations

import pytest

from benchmarks.speed import utilisation
from tests.benchmarks.running import run

PEAK = 1e9


@pytest.mark.usefixtures("here")
def test_ways_to_use_a_machine_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(utilisation, "peak_flops", lambda *_: PEAK)
    few = ("--processes", "2", "--batch", "16", "--steps", "1", "--seconds-per-row", "0.01")
    found = run(utilisation, tmp_path, *few)
    *judged, training = found["rows"]
    assert [(row["processes"], row["batch"]) for row in judged] == [(1, 1), (2, 1), (1, 16)]
    for row in judged:
        flops = row["samples_per_s"] * found["flops_per_sample"]
        assert row["flops_per_s"] == pytest.approx(flops)
        assert row["cpu_cores"] >= 0  # the clock is coarse
    for row in found["rows"]:
        assert row["share_of_peak"] == pytest.approx(row["flops_per_s"] / PEAK)
        assert row["sm_activity"] is None
    assert training["samples_per_s"] > 0
    assert (tmp_path / "found.png").stat().st_size > 0


def test_samples_of_several_processes_add_up(monkeypatch, tmp_path, quick):
    monkeypatch.setattr(utilisation, "peak_flops", lambda *_: PEAK)
    monkeypatch.setattr(utilisation, "several", lambda *_: [(10, 0.5, 0.25), (30, 0.5, 0.5)])
    rows = run(utilisation, tmp_path, "--processes", "2", "--batch", "2", "--steps", "1")["rows"]
    assert (rows[1]["samples_per_s"], rows[1]["cpu_cores"]) == pytest.approx((80, 1.5))
