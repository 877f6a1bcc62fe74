"""Trainings with and without predicted maps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.helpers import kept_runs
from benchmarks.learning import predicted
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.predictor import predictor_state
from marl_framework.runs.checkpoint import save_checkpoint
from tests.benchmarks.running import refusal, run

pytestmark = pytest.mark.usefixtures("quick")


def test_differences_are_seed_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(tmp_path / f"{seed}.pt") for seed in (3, 4)]
    for file in files:
        save_checkpoint(Path(file), predictor_state(MapPredictor(4), 4))
    seen = []
    learn = kept_runs.learn
    monkeypatch.setattr(kept_runs, "learn", lambda c, d: seen.append(c) or learn(c, d))
    options = ("--predictors", ",".join(files), "--seeds", "3,4", "--steps", "2")
    found = run(predicted, tmp_path, *options)
    assert [(one.environment.seed, one.networks.predictor) for one in seen] == [
        *[(3, files[0])] * 2,
        *[(4, files[1])] * 2,
    ]
    assert [one.observation.sees_prediction for one in seen] == [False, True] * 2
    f1 = {(one["variant"], one["seed"]): one["rows"][-1]["f1"] for one in found["runs"]}
    change = sum(f1["predicted", seed] - f1["without", seed] for seed in (3, 4)) / 2
    assert f"{change:+.3f} [" in capsys.readouterr().out
    assert torch.tensor(list(f1.values())).isfinite().all()


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--predictors: name 3" in refusal(predicted, tmp_path, capsys)
    options = ("--predictors", "runs/x,runs/y", "--seeds", "3,4", "--steps", "0")
    assert "--steps 0" in refusal(predicted, tmp_path, capsys, *options)
