"""Teams fly missions of params files that were written for other algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.team import (
    Checkpoint,
    find_checkpoint,
    mission_config,
    team_logits,
    trained_team,
    with_team,
)
from tests.planners.missions import flown
from tests.small import small_config
from tests.teams import save_team

CPU = torch.device("cpu")
MAPPO = {"experiment": {"algorithm": "mappo"}, "learning": {"clip_ratio": 0.2, "value_clip": 0.3}}
COMA: dict[str, Any] = {}


def plain(config: Config) -> dict[str, Any]:
    return config.model_dump(by_alias=True, mode="json", exclude_defaults=True)


def of(algorithm: dict[str, Any], **sections: Any) -> Config:
    tree = plain(small_config(**sections))
    for name, keys in algorithm.items():
        tree[name] = {**tree.get(name, {}), **keys}
    return Config.model_validate(tree)


def saved(folder: Path, config: Config) -> Checkpoint:
    return find_checkpoint(str(save_team(folder / "team.pt", config)))


@pytest.mark.parametrize(("team", "missions"), [(MAPPO, COMA), (COMA, MAPPO)])
def test_a_team_flies_missions_of_a_file_for_another_algorithm(
    tmp_path: Path, team: dict[str, Any], missions: dict[str, Any]
) -> None:
    checkpoint = saved(tmp_path, of(team))
    file = tmp_path / "missions.yaml"
    there = of(missions, budget=2)
    file.write_text(yaml.safe_dump(plain(there)))
    for config in (mission_config(str(file), (), checkpoint), with_team(there, checkpoint)):
        assert config.missions.episode_length == 3
        actor = trained_team(config, checkpoint, CPU).modules["actor"].state_dict()
        for name, weights in checkpoint.payload["actor"].items():
            assert torch.equal(actor[name], weights)


def test_a_team_flies_an_area_as_one_of_those_that_are_listed(tmp_path: Path) -> None:
    areas = ({"x_dim": 30.0, "y_dim": 30.0}, {"x_dim": 40.0, "y_dim": 20.0})
    seen = {"window": 5, "other_actions": False}
    config = small_config(observation=seen, environment={"area": areas})
    for area in config.areas:
        assert with_team(area, saved(tmp_path, config)).largest_sides == (40, 30)


@pytest.mark.parametrize(
    ("options", "key"), [({"dims": (40.0, 30.0)}, "environment.x_dim"), ({"actions": 27}, "num_ac")]
)
def test_a_team_of_another_lattice_is_refused_by_the_key(
    tmp_path: Path, options: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=key):
        trained_team(small_config(**options), saved(tmp_path, small_config()), CPU)


def test_a_team_sees_uncertainty_where_the_missions_show_none(tmp_path: Path) -> None:
    seen = small_config(observation={"uncertainty": True, "centred_uncertainty": True})
    checkpoint = saved(tmp_path, seen)
    shown, hidden = (
        team_logits(env, checkpoint)(flown(env, 2))
        for env in (MissionEnvironment(config, 3, CPU, "test") for config in (seen, small_config()))
    )
    torch.testing.assert_close(hidden, shown, atol=1e-3, rtol=1e-3)


def test_learning_rates_do_not_keep_a_team_from_flying(tmp_path: Path) -> None:
    learning = {"lr_scaling": "linear", "lr_base_batch": 60, "actor": {"learning_rate": 1e-2}}
    checkpoint = saved(tmp_path, of({"learning": learning}, num_envs=1))
    assert with_team(small_config(num_envs=20_000), checkpoint).missions.most_agents == 3
