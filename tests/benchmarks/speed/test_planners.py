"""Planners are timed."""

from __future__ import annotations

import pytest

from benchmarks.speed import planners
from marl_framework.config.loading import load_config
from tests.benchmarks.running import FLOAT32, positive, run
from tests.teams import save_predictor, save_team


@pytest.mark.usefixtures("quick")
def test_each_planner_is_timed_alone_and_with_others(tmp_path, capsys):
    config = load_config("params_test.yaml", [FLOAT32])
    predictor = save_predictor(tmp_path / "predictor.pt", config)
    team = save_team(tmp_path / "team.pt", config)
    chosen = f"experiment.baselines.search.predictor={predictor}"
    arguments = ("--set", chosen, "--missions", "1,2", "--checkpoint", str(team))
    rows = run(planners, tmp_path, *arguments)["rows"]
    flown = [(row["missions"], row["planner"]) for row in rows]
    assert flown == [(n, name) for n in (1, 2) for name in (*planners.NAMES, "learned")]
    for row in rows:
        assert positive([row["lower_quartile"], row["flights"]])
        assert row["lower_quartile"] <= row["seconds_move"] <= row["upper_quartile"]
    assert "information_gain" in capsys.readouterr().out
