"""Passes over the same transitions, and update intervals with their advice."""

from __future__ import annotations

import pytest

from benchmarks.learning import sample_reuse, update_interval
from marl_framework.config.loading import load_config
from tests.benchmarks.running import run

pytestmark = pytest.mark.usefixtures("quick")
PEAK = 1e9


@pytest.fixture(autouse=True)
def _peak(monkeypatch):
    monkeypatch.setattr(update_interval, "peak_flops", lambda *_: PEAK)


@pytest.mark.soak
def test_passes_are_compared_with_and_without_a_limit(tmp_path, capsys):
    few = ("--passes", "1,6", "--steps", "4", "--kl-limit", "1e-7", "--seeds", "1")
    rows = run(sample_reuse, tmp_path, *few)["rows"]
    assert [(row["data_passes"], row["kl_limit"]) for row in rows] == [
        *((1, 0.0), (6, 0.0), (1, 1e-7), (6, 1e-7)),
    ]
    assert [row["held_back"] for row in rows[:2]] == [0, 0]
    assert rows[3]["held_back"] > 0.5
    assert rows[3]["kl"] < rows[1]["kl"]
    assert (tmp_path / "found.png").stat().st_size > 0
    assert f"{rows[3]['transitions']:,}" in capsys.readouterr().out


def test_held_back_updates_count_over_the_whole_training():
    metrics = {"kl_halted": [1.0, 0.5] + [0.0] * 8, "kl": [0.1] * 9 + [0.3]}
    found = sample_reuse.summarise([metrics, metrics])
    assert found["held_back"] == pytest.approx(0.15)
    assert found["kl"] == pytest.approx(0.2)


@pytest.mark.soak
def test_every_interval_flies_and_updates_equally_much(tmp_path, capsys):
    few = ("--intervals", "1,2", "--steps", "4", "--seeds", "1")
    found = run(update_interval, tmp_path, *few)
    rows = found["rows"]
    assert [row["update_interval"] for row in rows] == [1, 2]
    learning = load_config("params_test").learning
    for row in rows:
        assert row["transitions"] == 4 * 4 * 2 * 4
        assert row["updates"] == 2 * 4 * learning.data_passes * learning.batch_number
        assert 0 < row["rollout_seconds"] + row["update_seconds"] <= row["seconds"]
        assert row["real_utilisation"] == pytest.approx(row["flops_per_s"] / PEAK)
        assert row["transitions_per_s"] == pytest.approx(row["transitions"] / row["seconds"])
    (advice,) = found["advice"]
    assert advice in capsys.readouterr().out
    assert (tmp_path / "found.png").stat().st_size > 0


def test_batch_sizes_keep_the_transitions(tmp_path):
    sizes = ("--intervals", "1", "--batch-sizes", "8,32", "--steps", "1", "--seeds", "2")
    found = run(update_interval, tmp_path, *sizes)
    assert [len(row["returns"]) for row in found["rows"]] == [2, 2]
    assert len(set(found["rows"][0]["returns"])) == 2  # another seed, another training
    assert [line.partition(":")[0] for line in found["advice"]] == ["batch 8", "batch 32"]
    assert [(row["batch_size"], row["batch_number"]) for row in found["rows"]] == [(8, 4), (32, 1)]
    assert len({row["transitions"] for row in found["rows"]}) == 1


def rows_of(*values):
    """Rows of intervals 1, 5 and 10: speed and mean return of each, over three seeds."""
    seeds = (-0.1, 0.1, 0.0)  # seeds differ more than intervals do, and equally for all of them
    return [
        {"batch_size": 60, "update_interval": interval, "transitions_per_s": speed,
         "returns": [value + 10 * seed + (k + 1) % 3 * 0.01 * interval for k, seed in
                     enumerate(seeds)], "peak_memory_bytes": 2**30}
        for interval, (speed, value) in zip((1, 5, 10), values, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "chosen", "worse"),
    [
        (rows_of((10, 0.0), (20, 0.0), (30, 0.0)), 10, []),
        (rows_of((10, 0.0), (20, 0.0), (30, -1.0)), 5, [10]),
        (rows_of((10, 0.0), (20, -1.0), (30, -1.0)), 1, [5, 10]),
        (rows_of((10, 0.0), (20, -0.02), (20.1, 0.0)), 5, []),  # equal speed: the smaller
    ],
)
def test_the_advice_is_the_fastest_interval_that_is_not_worse(rows, chosen, worse):
    best, others = update_interval.choose(rows)
    assert best["update_interval"] == chosen
    assert [row["update_interval"] for row in others] == worse
    (line,) = update_interval.advice(rows)
    assert f"K = {chosen} " in line
