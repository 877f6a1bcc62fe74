"""Pilots are timed."""

from __future__ import annotations

import pytest

from benchmarks.speed import pilot
from tests.benchmarks.running import positive, run, team_words


@pytest.mark.usefixtures("quick")
def test_each_planner_is_timed_in_both_steps(tmp_path, capsys):
    results = run(pilot, tmp_path, *team_words(tmp_path))
    rows = results["rows"]
    flown = {(row["planner"], row["step"]) for row in rows}
    assert flown == {(name, step) for name in pilot.NAMES for step in ("fuse", "decide")}
    for row in rows:
        assert positive([row["median"], row["moves"], results["peak_memory"]])
        assert row["median"] <= row["largest"]
    assert "information_gain" in capsys.readouterr().out
    flown = results["settings"]["configuration"]
    assert flown["networks"]["actor"]["conv_channels"] == 9
