"""Flights that trust the camera, know its errors or learn them, policy by policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.learning import doubt
from marl_framework.config.loading import load_config
from marl_framework.evaluation import comparison
from marl_framework.planners.team import load_team, with_team
from tests.benchmarks.running import CONFIG, FLOAT32, run
from tests.teams import save_team


@pytest.mark.usefixtures("quick")
def test_rows_are_flights_of_the_same_missions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "ERRORS", (0.1,))
    teams = [
        str(save_team(tmp_path / f"{seed}.pt", load_config("params_test.yaml"), seed=seed))
        for seed in (1, 2)
    ]
    words = ("--checkpoint", ",".join(teams), "--policies", "student", "--missions", "3")
    (found,) = run(doubt, tmp_path, *words, "--seed", "7")["runs"]
    rates = [f"sensor.reality.{rate}=0.1" for rate in ("miss", "false_alarm")]
    # The lowest altitude has a rate of 0.01 in the model.
    ways = {
        "trusting": [],
        "known": ["mapping.caution=0.4549"],
        "learned": ["sensor.model.adapt=true"],
    }
    values = {}
    for way, overrides in ways.items():
        config = load_config(CONFIG[1], [FLOAT32, *rates, *overrides])
        each = []
        for name in teams:
            given = (["learned"], 3, 7, load_team(name))
            prepared = comparison.prepare(with_team(config, given[-1]), torch.device("cpu"), *given)
            (record,) = prepared.fly().values()
            each.append(record.metrics["brier"][:, -1])
        values[way] = torch.stack(each)
    means = {way: of.mean().item() for way, of in values.items()}
    brier = found["brier"]
    assert brier["trusting"] == pytest.approx(means["trusting"])
    for way in ("known", "learned"):
        assert brier[way]["mean"] == pytest.approx(means[way], abs=1e-4 * (way == "known"))
        low, high = brier[way]["interval"]
        assert low <= means[way] - means["trusting"] <= high
        assert means[way] != means["trusting"]
    assert f"{brier['learned']['mean']:.3f}" in capsys.readouterr().out
