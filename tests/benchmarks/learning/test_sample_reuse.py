"""Passes over the same transitions."""

from __future__ import annotations

import pytest

from benchmarks.learning import sample_reuse
from tests.benchmarks.running import run

pytestmark = pytest.mark.usefixtures("quick")


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
