"""Adaptive flights beside plans that were made on other maps."""

from __future__ import annotations

import pytest
import torch

from benchmarks.learning import adaptive
from marl_framework.config.loading import load_config
from marl_framework.evaluation.flight import MissionStreams, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from tests.benchmarks.running import CONFIG, run
from tests.teams import save_team


def environment(missions: int) -> MissionEnvironment:
    return MissionEnvironment(load_config("params_test.yaml"), missions, "cpu", "test")


def test_plans_are_made_on_other_maps_from_the_same_starts() -> None:
    env = environment(4)
    here = env.reset(MissionStreams(env, 7).draw_reset())
    there = env.reset(adaptive.OtherMaps(env, 7).draw_reset())
    assert torch.equal(here.positions, there.positions)
    assert (here.truth != there.truth).flatten(1).any(1).all()


@pytest.mark.parametrize("batch", [2, 4])
def test_a_plan_repeats_a_flight(batch: int) -> None:
    env = environment(batch)
    planner = adaptive.Recording(make_planner("information_gain", env))
    flown = evaluate(env, planner, 4, 7)
    again = evaluate(env, adaptive.Replaying(planner.actions, env.lattice), 4, 7)
    assert torch.equal(again.positions, flown.positions)
    assert torch.equal(again.metrics["f1"], flown.metrics["f1"])
    assert torch.equal(flown.positions, evaluate(env, planner, 4, 7).positions)


def test_ways_fly_the_same_missions() -> None:
    env = environment(3)
    flown = adaptive.fly(env, "information_gain", None, 3, 7)
    planner = make_planner("information_gain", env)
    planned = evaluate(env, planner, 3, 7, streams=adaptive.OtherMaps)
    assert torch.equal(flown["replayed"].positions, planned.positions)
    assert torch.equal(flown["adaptive"].positions, evaluate(env, planner, 3, 7).positions)
    assert not torch.equal(flown["adaptive"].positions, planned.positions)
    assert all(torch.equal(record.truth, flown["adaptive"].truth) for record in flown.values())
    assert not torch.equal(planned.truth, flown["adaptive"].truth)


@pytest.mark.usefixtures("quick")
def test_rows_pair_the_ways_by_mission(tmp_path, capsys) -> None:
    team = save_team(tmp_path / "team.pt", load_config("params_test.yaml"))
    words = ("--checkpoint", str(team), "--terrains", "split", "--teams", "student")
    (row,) = run(adaptive, tmp_path, *words, "--missions", "3", "--seed", "7")["rows"]
    config = load_config(CONFIG[1], ["compute.precision=float32"])
    env = MissionEnvironment(config, 3, "cpu", "test")
    coverage = evaluate(env, make_planner("coverage", env), 3, 7).metrics["f1"][:, -1]
    assert row["f1"]["coverage"] == pytest.approx(float(coverage.mean()))
    for way in ("replayed", "coverage"):
        change = row["f1"]["difference"][way]
        assert change["mean"] == pytest.approx(row["f1"]["adaptive"] - row["f1"][way], abs=1e-6)
        assert change["interval"][0] <= change["mean"] <= change["interval"][1]
    assert f"{row['f1']['replayed']:.3f}" in capsys.readouterr().out
    assert (tmp_path / "found.png").stat().st_size > 5000
