"""Passes over the same transitions, with and without a limit."""

from __future__ import annotations

import pytest
import torch

from benchmarks.learning import sample_reuse
from marl_framework.config.loading import load_config
from tests.benchmarks.running import refusal, run

pytestmark = pytest.mark.usefixtures("quick")


def test_passes_are_compared_with_and_without_a_limit(tmp_path, capsys):
    found = run(
        sample_reuse,
        tmp_path,
        "--passes",
        "1,6",
        "--steps",
        "4",
        "--kl-limit",
        "1e-7",
        "--seeds",
        "1",
    )
    rows = found["rows"]
    assert [(row["data_passes"], row["kl_limit"]) for row in rows] == [
        *((1, 0.0), (6, 0.0), (1, 1e-7), (6, 1e-7)),
    ]
    assert [row["held_back"] for row in rows[:2]] == [0, 0]
    assert rows[3]["held_back"] > 0.5
    assert rows[3]["kl"] < rows[1]["kl"]
    assert (tmp_path / "found.png").stat().st_size > 0
    assert "held back" in capsys.readouterr().out


def test_what_the_limit_held_back_is_of_the_whole_training(monkeypatch):
    """Also where it acted only before the last fifth."""
    metrics = {"kl_halted": [1.0, 0.5] + [0.0] * 8, "kl": [0.1] * 9 + [0.3]}
    metrics |= {name: [1.0] for name in ("explained_variance", "policy_entropy")}
    validation = {name: {"mean": 2.0} for name in ("return", "roi_entropy")}
    training = {"metrics": metrics, "validation": validation, "transitions": 10, "seconds": 5.0}
    monkeypatch.setattr(sample_reuse, "learn_from_seeds", lambda *_: [training, training])
    row = sample_reuse._row(load_config("params_test.yaml"), torch.device("cpu"), 2)
    assert row["held_back"] == pytest.approx(0.15)
    assert row["kl"] == pytest.approx(0.2)
    assert row["returns"] == [2.0, 2.0]


def test_bad_input_is_one_line(tmp_path, capsys):
    assert "--kl-limit -1" in refusal(sample_reuse, tmp_path, capsys, "--kl-limit", "-1")
