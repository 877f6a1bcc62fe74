"""Flights with lost and late messages, one by one."""

from __future__ import annotations

import json

import pytest

from benchmarks.learning import radio
from marl_framework.config.loading import load_config
from marl_framework.evaluation.flight import evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from tests.benchmarks.running import CONFIG, FAR, FLOAT32, run
from tests.teams import save_team


@pytest.mark.usefixtures("quick")
def test_rows_are_flights_with_their_losses_and_delays(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(radio, "LOSSES", (0.0, 0.6))
    monkeypatch.setattr(radio, "DELAYS", (0, 2))
    team = save_team(tmp_path / "team.pt", load_config("params_test.yaml"))
    words = ("--checkpoint", str(team), "--set", FAR, "--missions", "3", "--seed", "7")
    both = ("--policies", "student,information_gain")
    found = run(radio, tmp_path, *words, *both)
    runs = {(run["variant"], run["loss"], run["delay"]): run for run in found["runs"]}
    assert len(runs) == len(found["runs"]) == 8
    uav = "experiment.uav"
    for loss, delay in ((0.0, 0), (0.6, 2)):
        given = [f"{uav}.failure_rate={loss}", f"{uav}.failure_burst=10", f"{uav}.delay={delay}"]
        env = MissionEnvironment(load_config(CONFIG[1], [FLOAT32, FAR, *given]), 3, "cpu", "test")
        flown = evaluate(env, make_planner("information_gain", env), 3, 7).metrics
        one = runs["information_gain", loss, delay]
        for metric, worst in (("roi_entropy", max), ("f1", min)):
            finals = flown[metric][:, -1].tolist()
            assert one[metric]["mean"] == pytest.approx(sum(finals) / 3)
            assert one[metric]["worst_tenth"] == pytest.approx(worst(finals))
    own = [found["runs"][k]["roi_entropy"]["mean"] for k in range(4)]
    assert radio.grid(found, "student", "roi_entropy", "mean").tolist() == [own[:2], own[2:]]
    assert len(set(own)) > 1
    assert f"{own[3]:.3f}" in capsys.readouterr().out
    assert (tmp_path / "found.png").stat().st_size > 5000
    del found["runs"][1]
    (tmp_path / "found.json").write_text(json.dumps(found), encoding="utf-8")
    partly = run(radio, tmp_path, *words, "--policies", "information_gain")
    assert partly["runs"] == found["runs"]
    again = run(radio, tmp_path, *words, *both)
    assert again["runs"] == [*found["runs"], runs["student", 0.0, 2]]
    assert radio.grid(again, "student", "roi_entropy", "mean").tolist() == [own[:2], own[2:]]
