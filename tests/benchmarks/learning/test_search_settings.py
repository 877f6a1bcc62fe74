"""Search with plans remembered for longer or shorter."""

from __future__ import annotations

import pytest
import torch

from benchmarks.helpers.command_line import with_overrides
from benchmarks.learning import search_settings
from marl_framework.config.loading import load_config
from marl_framework.evaluation.flight import validate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.predictor import predictor_state
from marl_framework.planners.registry import make_planner
from marl_framework.runs.checkpoint import save_checkpoint
from tests.benchmarks.running import refusal, run

pytestmark = pytest.mark.usefixtures("quick")


def test_rows_compare_with_the_first_of_their_team(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(search_settings, "TEAMS", (2,))
    monkeypatch.setattr(search_settings, "RANGES", (15.0,))
    monkeypatch.setattr(search_settings, "SETTINGS", ((0.0, 0.4, 0.0), (1.0, 0.2, 0.5)))
    files = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        files.append(str(tmp_path / f"{seed}.pt"))
        save_checkpoint(tmp_path / f"{seed}.pt", predictor_state(MapPredictor(4), 4))
    options = ("--config", "params_test.yaml", "--predictors", ",".join(files), "--missions", "3")
    first, second = run(search_settings, tmp_path, *options)["rows"]
    means = {}
    for memory, presumed, weight in search_settings.SETTINGS:
        flown = []
        for file in files:
            config = with_overrides(
                load_config("params_test.yaml"),
                "experiment.missions.n_agents=2",
                f"experiment.baselines.search.predictor={file}",
                "experiment.uav.communication_range=15",
                f"experiment.baselines.search.plan_memory={memory}",
                f"experiment.baselines.search.presumed_share={presumed}",
                f"experiment.baselines.search.outside_weight={weight}",
            )
            env = MissionEnvironment(config, 3, "cpu", "validation")
            flown.append(validate(env, make_planner("search", env))["f1"].mean().item())
        means[memory] = sum(flown) / 2
    assert first["f1"]["mean"] == pytest.approx(means[0.0])
    assert second["f1"]["mean"] == pytest.approx(means[1.0])
    assert second["f1"]["difference"] == pytest.approx(means[1.0] - means[0.0])
    assert first["f1"]["difference_interval"] == [0.0, 0.0]
    assert f"{second['f1']['mean']:.3f}" in capsys.readouterr().out


def test_bad_input_is_one_line(tmp_path, capsys):
    assert "--predictors" in refusal(search_settings, tmp_path, capsys)
    options = ("--predictors", "runs/x", "--missions", "1")
    assert "--missions 1" in refusal(search_settings, tmp_path, capsys, *options)
