"""Pilots are timed."""

from __future__ import annotations

import pytest

from benchmarks.speed import pilot
from marl_framework.config.loading import load_config
from tests.benchmarks.running import FLOAT32, positive, run
from tests.teams import save_predictor, save_team


@pytest.mark.usefixtures("quick")
def test_each_planner_is_timed_in_both_steps(tmp_path, capsys):
    config = load_config("params_test.yaml", [FLOAT32])
    predictor = save_predictor(tmp_path / "predictor.pt", config)
    team = save_team(tmp_path / "team.pt", config)
    chosen = f"experiment.baselines.search.predictor={predictor}"
    results = run(pilot, tmp_path, "--set", chosen, "--checkpoint", str(team))
    rows = results["rows"]
    flown = {(row["planner"], row["step"]) for row in rows}
    assert flown == {(name, step) for name in pilot.NAMES for step in ("fuse", "decide")}
    for row in rows:
        assert positive([row["median"], row["moves"], results["peak_memory"]])
        assert row["median"] <= row["largest"]
    assert "information_gain" in capsys.readouterr().out
