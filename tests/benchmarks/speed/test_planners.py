"""Planners are timed."""

from __future__ import annotations

import pytest

from benchmarks.speed import planners
from tests.benchmarks.running import positive, run, team_words


@pytest.mark.usefixtures("quick")
def test_each_planner_is_timed_alone_and_with_others(tmp_path, capsys):
    found = run(planners, tmp_path, "--missions", "1,2", *team_words(tmp_path))
    rows = found["rows"]
    flown = [(row["missions"], row["planner"]) for row in rows]
    assert flown == [(n, name) for n in (1, 2) for name in (*planners.NAMES, "learned")]
    for row in rows:
        assert positive([row["lower_quartile"], row["flights"]])
        assert row["lower_quartile"] <= row["seconds_move"] <= row["upper_quartile"]
    assert "information_gain" in capsys.readouterr().out
    flown = found["settings"]["configuration"]
    assert flown["networks"]["actor"]["conv_channels"] == 9
