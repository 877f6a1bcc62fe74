"""Passes over the same transitions, with and without a limit."""

from __future__ import annotations

import pytest

from benchmarks.learning import sample_reuse
from tests.benchmarks.running import refusal, run

pytestmark = pytest.mark.usefixtures("quick")


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


def test_bad_input_is_one_line(tmp_path, capsys):
    assert "--kl-limit -1" in refusal(sample_reuse, tmp_path, capsys, "--kl-limit", "-1")
