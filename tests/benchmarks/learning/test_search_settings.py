"""Search with plans remembered for longer or shorter."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.learning import search_settings
from marl_framework.config.loading import load_config
from marl_framework.evaluation.flight import validate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from tests.benchmarks.running import run
from tests.small import small_config
from tests.teams import save_predictor


@pytest.mark.usefixtures("quick")
def test_rows_compare_with_the_first_of_their_team(tmp_path, capsys, monkeypatch):
    settings = ((0.0, 0.4, 0.0), (1.0, 0.2, 0.5))
    for name, value in (("TEAMS", (2,)), ("RANGES", (15.0,)), ("SETTINGS", settings)):
        monkeypatch.setattr(search_settings, name, value)
    files = [str(tmp_path / f"{seed}.pt") for seed in (1, 2)]
    for seed, file in enumerate(files):
        save_predictor(Path(file), small_config(), seed)
    options = ("--predictors", ",".join(files), "--missions", "3")
    first, second = run(search_settings, tmp_path, *options)["rows"]
    means = []
    for memory, presumed, weight in settings:
        flown = []
        for file in files:
            search = "experiment.baselines.search"
            config = load_config(
                "params_test.yaml",
                [
                    *("experiment.missions.n_agents=2", "experiment.uav.communication_range=15"),
                    *(f"{search}.predictor={file}", f"{search}.plan_memory={memory}"),
                    *(f"{search}.presumed_share={presumed}", f"{search}.outside_weight={weight}"),
                ],
            )
            env = MissionEnvironment(config, 3, "cpu", "validation")
            flown.append(validate(env, make_planner("search", env))["f1"].mean().item())
        means.append(sum(flown) / 2)
    assert [first["f1"]["mean"], second["f1"]["mean"]] == pytest.approx(means)
    assert second["f1"]["difference"] == pytest.approx(means[1] - means[0])
    assert first["f1"]["difference_interval"] == [0.0, 0.0]
    assert f"{second['f1']['mean']:.3f}" in capsys.readouterr().out
