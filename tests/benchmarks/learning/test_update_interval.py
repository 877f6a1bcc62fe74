"""Benchmarks of updates, sample reuse, utilisation and ranks: what they write and advise."""

from __future__ import annotations

import json
import queue
import threading

import pytest
import torch

from benchmarks import (
    harness,
    learning,
    ranks,
    sample_reuse,
    training,
    update_interval,
    utilisation,
)
from marl_framework.config.loading import config_to_dict, load_config

CPU = torch.device("cpu")
PEAK = 1e9
SMALL = ["--config", "params_test.yaml", "--device", "cpu", "--set", "compute.precision=float32"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Peaks and bandwidths are not measured, no process is started."""
    monkeypatch.setattr(harness, "memory_bandwidth", lambda _: 1e10)
    for module in (update_interval, utilisation):
        monkeypatch.setattr(module, "peak_flops", lambda *_: PEAK)
    monkeypatch.setattr(ranks, "gloo_seconds", lambda size: size / 1e9)


def run(module, tmp_path, *arguments):
    """Run a benchmark in this process; return what it wrote."""
    out = tmp_path / "found.json"
    assert module.main([*SMALL, "--out", str(out), *arguments]) == 0
    found = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert (found["schema"], found["suite"]) == (harness.SCHEMA, module.SUITE)
    return found


# Update interval --------------------------------------------------------------------------


def test_every_interval_flies_and_updates_equally_much(tmp_path, capsys):
    found = run(update_interval, tmp_path, "--intervals", "1,2", "--steps", "4")
    rows = found["rows"]
    assert [row["update_interval"] for row in rows] == [1, 2]
    networks = load_config("params_test").networks
    for row in rows:
        assert row["transitions"] == 4 * 4 * 2 * 4
        assert row["updates"] == 2 * 4 * learning.data_passes * learning.batch_number
        assert 0 < row["rollout_seconds"] + row["update_seconds"] <= row["seconds"]
        assert row["real_utilisation"] == pytest.approx(row["flops_per_s"] / PEAK)
        assert row["transitions_per_s"] == pytest.approx(row["transitions"] / row["seconds"])
    assert len(found["advice"]) == 1
    assert (tmp_path / "found.png").stat().st_size > 0
    printed = capsys.readouterr().out
    assert found["advice"][0] in printed


def test_batch_sizes_keep_the_transitions(tmp_path):
    found = run(
        update_interval, tmp_path, "--intervals", "1", "--batch-sizes", "8,32", "--steps", "1"
    )
    assert [(row["batch_size"], row["batch_number"]) for row in found["rows"]] == [(8, 4), (32, 1)]
    assert len({row["transitions"] for row in found["rows"]}) == 1


def rows_of(*values):
    """Rows of intervals 1, 5 and 10: speed and return of each, standard error 0.1."""
    return [
        {"batch_size": 60, "update_interval": interval, "transitions_per_s": speed,
         "return": value, "return_standard_error": 0.1, "peak_memory_bytes": 2**30}
        for interval, (speed, value) in zip((1, 5, 10), values, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "chosen", "unsound"),
    [
        (rows_of((10, 0.0), (20, 0.0), (30, 0.0)), 10, None),
        (rows_of((10, 0.0), (20, 0.0), (30, -1.0)), 5, "10"),
        (rows_of((10, 0.0), (20, -1.0), (30, -1.0)), 1, "5, 10"),
        (rows_of((10, 0.0), (20, -0.2), (20.1, 0.0)), 5, None),  # equal speed: the smaller
    ],
)
def test_the_advice_is_the_fastest_interval_that_learns_as_well(rows, chosen, unsound):
    (line,) = update_interval.advice(rows)
    assert f"K = {chosen} is the fastest" in line
    assert line.partition("a lower return at K = ")[2] == (unsound or "")


# Sample reuse -----------------------------------------------------------------------------


def test_passes_are_compared_with_and_without_a_limit(tmp_path, capsys):
    found = run(sample_reuse, tmp_path, "--passes", "1,6", "--steps", "4", "--kl-limit", "1e-7")
    rows = found["rows"]
    assert [(row["data_passes"], row["kl_limit"]) for row in rows] == [
        *((1, 0.0), (6, 0.0), (1, 1e-7), (6, 1e-7)),
    ]
    assert [row["kl_halted"] for row in rows[:2]] == [0, 0]
    assert rows[3]["kl_halted"] > 0.5
    assert rows[3]["kl"] < rows[1]["kl"]
    assert (tmp_path / "found.png").stat().st_size > 0
    assert "held back" in capsys.readouterr().out


def test_the_last_fifth_is_at_least_one_value():
    assert learning.last_fifth([1.0, 2.0]) == 2.0
    assert learning.last_fifth([float(n) for n in range(10)]) == 8.5


# Utilisation ------------------------------------------------------------------------------


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


def test_busy_cores_are_read_from_the_system(tmp_path, monkeypatch):
    times = tmp_path / "stat"
    monkeypatch.setattr(learning, "_CPU_TIMES", times)
    times.write_text("cpu  100 0 0 800 100 0 0 0 0 0\ncpu0 1\n")
    reader = learning.CpuReader()
    times.write_text("cpu  160 0 0 830 110 0 0 0 0 0\ncpu0 1\n")
    assert reader() == {"utilization": pytest.approx(0.6)}


def test_operations_of_a_product_are_counted():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert training.flops_of(lambda: a @ b) == 2 * 3 * 4 * 5


# Ranks ------------------------------------------------------------------------------------


def test_a_ring_exchange_takes_what_it_must():
    # Two ranks send half of 100 bytes twice; each of the two messages waits 1 s.
    assert ranks.exchange_seconds((10.0, 1.0), 2, 100) == pytest.approx(100 / 10 + 2)
    assert ranks.exchange_seconds((10.0, 0.0), 10**6, 100) == pytest.approx(2 * 100 / 10, rel=1e-5)


def test_the_plan_shares_the_work_and_adds_the_exchange():
    step = {"seconds": 8.0, "updates": 2, "gradient_bytes": 100}
    found = ranks.plan(step, (100.0, 0.0), 4)  # 1.5 s an update
    assert found["exchange_seconds"] == pytest.approx(3.0)
    assert found["fixed_speed_up"] == pytest.approx(8 / (2 + 3))
    assert found["grown_speed_up"] == pytest.approx(4 * 8 / (8 + 3))
    assert found["grown_efficiency"] == pytest.approx(8 / 11)


def test_the_plan_comes_from_a_measured_step(tmp_path, capsys):
    found = run(ranks, tmp_path, "--steps", "1")
    networks = load_config("params_test").networks
    assert found["step"]["updates"] == 2 * learning.data_passes * learning.batch_number
    assert found["step"]["transitions"] == 32
    assert len(found["rows"]) == (len(ranks.LINKS) + 1) * len(ranks.COUNTS)
    efficiencies = [row["fixed_efficiency"] for row in found["rows"][: len(ranks.COUNTS)]]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert "Planned, not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "arguments", "named"),
    [
        (update_interval, ["--seeds", "0"], "--seeds 0"),
        (update_interval, ["--intervals", "5,1"], "--intervals"),
        (update_interval, ["--steps", "0"], "learning.training_steps"),
        (sample_reuse, ["--kl-limit", "-1"], "--kl-limit -1"),
        (utilisation, ["--processes", "0"], "--processes 0"),
        (ranks, ["--steps", "0"], "--steps 0"),
    ],
)
def test_bad_input_is_one_line(module, arguments, named, tmp_path, capsys):
    out = tmp_path / "found.json"
    try:
        code = module.main([*SMALL, "--out", str(out), *arguments])
    except SystemExit as end:
        code = end.code
    assert code == harness.BAD_INPUT
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert named in error
    assert not out.exists()
