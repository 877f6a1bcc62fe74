"""Trainings apart and together."""

from __future__ import annotations

import pytest
import torch

from benchmarks.speed import busy_machine, together
from marl_framework.config.loading import load_config
from tests.benchmarks.running import positive, refusal, run

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_machine, "measure", lambda *_: [30.0, 12.0])


def test_each_way_is_timed_and_each_number_of_runs_counted(tmp_path, monkeypatch, capsys):
    pytest.importorskip("triton")
    monkeypatch.setattr(together, "RUNS", (2, 4))
    monkeypatch.setattr(together, "SHARES", (2,))
    found = run(together, tmp_path, "--runs", "2")
    assert [row["way"] for row in found["rows"]] == [
        "one after the other",
        "--jobs 2",
        "--together",
        "… stacked",
    ]
    assert positive(row["agent_transitions_per_s"] for row in found["rows"])
    assert found["rows"][1]["agent_transitions_per_s"] == 42
    assert {(row["missions"], row["batch"]) for row in found["rows"]} == {(2, 8)}
    two, four = (row["kernels"] for row in found["gpu"])
    assert four["apart"] == 2 * two["apart"]
    assert two["stacked"] < two["apart"]
    assert four["stacked"] < 1.5 * two["stacked"]
    megabytes = found["gpu"][1]["megabytes"]
    assert megabytes["apart"] < megabytes["stacked"] < 1.6 * megabytes["apart"]
    printed = capsys.readouterr().out
    assert "2 trainings" in printed
    assert f"{four['stacked']:,}" in printed


def test_a_gpu_is_not_counted_on_itself(monkeypatch):
    monkeypatch.setattr(together, "_speeds", lambda *_: {together.AFTER: 1.0})
    monkeypatch.setattr(together.harness, "announce_machine", lambda _: {})
    config = load_config("params_test.yaml")
    found = together.run(config, torch.device("cuda", 0), 1.0, 2)
    assert found["gpu"] == []
    assert "kernels" not in together.table(found)


@pytest.mark.parametrize("runs", ["1", "65"])
def test_bad_input_is_one_line(tmp_path, capsys, runs):
    assert f"--runs {runs}: must lie in" in refusal(together, tmp_path, capsys, "--runs", runs)
