"""Update intervals at equal transitions, and the advice on them."""

from __future__ import annotations

import pytest

from benchmarks.learning import update_interval
from marl_framework.config.loading import load_config
from tests.benchmarks.running import refusal, run

PEAK = 1e9


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _peak(monkeypatch):
    monkeypatch.setattr(update_interval, "peak_flops", lambda *_: PEAK)


def test_every_interval_flies_and_updates_equally_much(tmp_path, capsys):
    found = run(update_interval, tmp_path, "--intervals", "1,2", "--steps", "4", "--seeds", "1")
    rows = found["rows"]
    assert [row["update_interval"] for row in rows] == [1, 2]
    learning = load_config("params_test").learning
    for row in rows:
        assert row["transitions"] == 4 * 4 * 2 * 4
        assert row["updates"] == 2 * 4 * learning.data_passes * learning.batch_number
        assert 0 < row["rollout_seconds"] + row["update_seconds"] <= row["seconds"]
        assert row["real_utilisation"] == pytest.approx(row["flops_per_s"] / PEAK)
        assert row["transitions_per_s"] == pytest.approx(row["transitions"] / row["seconds"])
    assert found["advice"] == ["one seed gives no advice on K; --seeds 3 does"]
    assert (tmp_path / "found.png").stat().st_size > 0
    printed = capsys.readouterr().out
    assert found["advice"][0] in printed


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
    seeds = (-0.1, 0.1, 0.0)  # seeds differ more than intervals do, alike for all of them
    return [
        {"batch_size": 60, "update_interval": interval, "transitions_per_s": speed,
         "returns": [value + 10 * seed + (k + 1) % 3 * 0.01 * interval for k, seed in
                     enumerate(seeds)], "peak_memory_bytes": 2**30}
        for interval, (speed, value) in zip((1, 5, 10), values, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "chosen", "unsound"),
    [
        (rows_of((10, 0.0), (20, 0.0), (30, 0.0)), 10, None),
        (rows_of((10, 0.0), (20, 0.0), (30, -1.0)), 5, "10"),
        (rows_of((10, 0.0), (20, -1.0), (30, -1.0)), 1, "5, 10"),
        (rows_of((10, 0.0), (20, -0.02), (20.1, 0.0)), 5, None),  # equal speed: the smaller
    ],
)
def test_the_advice_is_the_fastest_interval_that_is_not_worse(rows, chosen, unsound):
    (line,) = update_interval.advice(rows)
    assert f"K = {chosen} is the fastest" in line
    assert line.partition("a lower return at K = ")[2] == (unsound or "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--seeds", "0"], "--seeds 0"),
        (["--intervals", "5,0"], "--intervals 0"),
        (["--intervals", "5,x"], "--intervals 5,x"),
        (["--batch-sizes", ""], "--batch-sizes"),
        (["--steps", "0"], "learning.training_steps"),
    ],
)
def test_bad_input_is_one_line(arguments, named, tmp_path, capsys):
    assert named in refusal(update_interval, tmp_path, capsys, *arguments)
