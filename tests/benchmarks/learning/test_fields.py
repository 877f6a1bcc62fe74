"""Flights over areas of many sizes, one by one."""

from __future__ import annotations

import pytest

from benchmarks.learning import fields
from marl_framework.config.loading import load_config
from marl_framework.evaluation.flight import evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.field_file import read_tables
from marl_framework.planners.registry import make_planner
from tests.benchmarks.running import CONFIG, FAR, FLOAT32, run
from tests.teams import save_team

FLOWN = "100x50_8_uavs"


@pytest.mark.usefixtures("quick")
def test_a_world_compares_teams_with_planners_on_their_missions(tmp_path, capsys) -> None:
    seen = ["observation.window=5", "observation.other_actions=false"]
    teams = []
    for seed in (1, 2):
        config = load_config("params_test.yaml", [*seen, f"environment.seed={seed}"])
        teams.append(str(save_team(tmp_path / f"{seed}.pt", config, seed)))
    words = ("--checkpoint", ",".join(teams), "--worlds", FLOWN, "--set", FAR, "--missions", "3")
    (found,) = run(fields, tmp_path, *words, "--seed", "7")["runs"]
    overrides = fields.worlds()[FLOWN]
    config = load_config(CONFIG[1], [FLOAT32, FAR, *overrides])
    assert config.missions.episode_length == 14
    env = MissionEnvironment(config, 3, "cpu", "test")
    flown = evaluate(env, make_planner("coverage", env), 3, 7).metrics["f1"][:, -1]
    assert found["f1"]["coverage"] == pytest.approx(float(flown.mean()))
    first, second = found["f1"]["seeds"]
    assert first != second
    assert found["f1"]["learned"] == pytest.approx((first + second) / 2)
    gap = found["f1"]["learned"] - found["f1"]["coverage"]
    assert found["f1"]["difference"]["coverage"]["mean"] == pytest.approx(gap)
    assert f"{found['f1']['learned']:.3f}" in capsys.readouterr().out


def test_worlds_are_missions_of_their_names() -> None:
    areas = {name: keys for name, keys in fields.worlds().items() if "lake" not in name}
    for name, overrides in areas.items():  # lakes are downloads
        config = load_config("params_fast.yaml", overrides)
        x, y, _ = config.geometry.lattice_shape
        positions = x * y
        if "holed" in name:
            positions = int(read_tables(str(config.environment.field), config).positions.sum())
        readings = config.missions.most_agents * config.missions.episode_length
        assert readings == pytest.approx(positions / 2, rel=0.05), name
        assert f"_{config.missions.most_agents}_uavs" in name
