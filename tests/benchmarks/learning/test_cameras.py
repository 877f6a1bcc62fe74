"""Completed maps with a learned caution and without, flight by flight."""

from __future__ import annotations

import pytest
import torch

from benchmarks.learning import cameras
from marl_framework.config.loading import load_config
from marl_framework.evaluation import comparison
from marl_framework.planners.team import load_team, with_team
from tests.benchmarks.running import CONFIG, FLOAT32, run
from tests.teams import save_team


@pytest.mark.usefixtures("quick")
def test_rows_are_flights_of_the_same_missions(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(cameras, "ERRORS", (0.0, 0.1))
    team = save_team(tmp_path / "team.pt", load_config("params_test.yaml"))
    words = ("--checkpoint", str(team), "--terrains", "split", "--missions", "3", "--seed", "7")
    found = run(cameras, tmp_path, *words)
    _, worse = found["runs"]
    means = {}
    for caution in ("1", "null"):
        rates = [f"sensor.reality.{rate}=0.1" for rate in ("miss", "false_alarm")]
        config = load_config(CONFIG[1], [FLOAT32, *rates, f"evaluation.caution={caution}"])
        config = with_team(config, load_team(str(team)))
        given = (["learned"], 3, 7, load_team(str(team)))
        (record,) = comparison.prepare(config, torch.device("cpu"), *given).fly().values()
        means[caution] = {name: v[:, -1].mean().item() for name, v in record.metrics.items()}
    assert worse["caution"] == pytest.approx(means["null"]["learned_caution"])
    assert worse["caution"] < 1
    for metric in ("completed_f1", "completed_brier"):
        row, (one, learned) = worse[metric], (means[c][metric] for c in ("1", "null"))
        assert (row["trusting"], row["learned"]) == pytest.approx((one, learned))
        assert row["difference"]["mean"] == pytest.approx(learned - one, abs=1e-6)
    assert worse["completed_brier"]["difference"]["mean"] != 0
    assert f"{worse['completed_brier']['learned']:.3f}" in capsys.readouterr().out
