"""Reported and real utilisation."""

from __future__ import annotations

import queue
import threading

import pytest

from benchmarks.speed import utilisation
from marl_framework.config.loading import config_to_dict, load_config
from tests.benchmarks.running import refusal, run

PEAK = 1e9


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _peak(monkeypatch):
    monkeypatch.setattr(utilisation, "peak_flops", lambda *_: PEAK)


def test_ways_to_use_a_machine_are_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(utilisation, "several", lambda *_: [(10, 0.5, 0.25), (30, 0.5, 0.5)])
    found = run(
        utilisation, tmp_path,
        *("--processes", "2", "--batch", "16", "--steps", "1", "--seconds-per-row", "0.01"),
    )  # fmt: skip
    single, several, large, training = found["rows"]
    assert several["samples_per_s"] == pytest.approx(80)
    assert several["cpu_cores"] == pytest.approx(1.5)
    assert [row["batch"] for row in found["rows"]] == [1, 1, 16, None]
    for row in (single, several, large):
        flops = row["samples_per_s"] * found["flops_per_sample"]
        assert row["flops_per_s"] == pytest.approx(flops)
    for row in found["rows"]:
        assert row["share_of_peak"] == pytest.approx(row["flops_per_s"] / PEAK)
        assert row["sm_activity"] is None
    assert training["samples_per_s"] > 0
    assert (tmp_path / "found.png").stat().st_size > 0


def test_a_process_judges_one_observation_at_a_time():
    found, tree = queue.Queue(), config_to_dict(load_config("params_test"))
    utilisation._process(tree, "cpu", 0.01, 1, threading.Barrier(1), found)
    samples, seconds, cpu = found.get()
    assert samples > 0
    assert seconds >= 0.01
    assert cpu >= 0


def test_bad_input_is_one_line(tmp_path, capsys):
    assert "--processes 0" in refusal(utilisation, tmp_path, capsys, "--processes", "0")
