"""A mission in which all lengths are multiplied is the same mission."""

from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import CENTRED
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.channels import CHANNELS
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import load_team, mission_config, trained_team, with_team
from tests.small import small_config
from tests.teams import save_team

TABLE = {5.0: 0.01, 10.0: 0.265, 15.0: 0.375}
SEEN: dict[str, Any] = {name: name.startswith(CENTRED) or name in CHANNELS for name in CHANNELS}
SEEN |= {name: False for name in CHANNELS if "predicted" in name}
SEEN |= {"other_actions": False, "window": 7}
KINDS = ("mixed", "landscape")


def missions(factor: float = 1.0) -> Config:
    """Return missions whose lengths are multiplied by `factor`."""
    side, height = ((f * factor for f in ends) for ends in ((5.0, 9.0), (6.0, 12.0)))
    return small_config(
        dims=(40.0 * factor, 25.0 * factor),
        max_altitude=15.0 * factor,
        agents=(2, 4),
        uav={
            "communication_range": (0.0, 15.0 * factor, float("inf")),
            "position_error": {"bias": 1.0 * factor, "jitter": 0.5 * factor},
            "delay": (0, 1),
        },
        constraints={
            "spacing": 5.0 * factor,
            "min_altitude": 5.0 * factor,
            "obstacles": {"number": 2, "side": tuple(side), "height": tuple(height)},
            "cost": {
                **{"limit": 40.0, "wind": 0.2, "horizontal": 1 / factor},
                **{"climb": 2 / factor, "descent": 0.5 / factor},
            },
        },
        sensor={
            "pixel": {"number_x": 12, "number_y": 12},
            "model": {"table": {h * factor: noise for h, noise in TABLE.items()}},
            "simulation": {"kinds": KINDS},
        },
        observation=SEEN,
    )


def fly(config: Config, policy: str, team: str) -> FlightRecord:
    env = MissionEnvironment(config, 6, "cpu", "test")
    return evaluate(env, make_planner(policy, env, load_team(team)), 6, seed=11, keep_maps=6)


@pytest.mark.parametrize("policy", ["learned", "information_gain"])
def test_larger_missions_are_flown_alike(policy: str, tmp_path: Path) -> None:
    team = str(save_team(tmp_path / "team.pt", missions()))
    expected = fly(missions(), policy, team)
    for factor, exact in ((4.0, True), (3.0, False)):
        found = fly(with_team(missions(factor), load_team(team)), policy, team)
        assert found.positions.equal(expected.positions)
        assert found.truth.equal(expected.truth)
        for name, values in expected.metrics.items():
            near = 0.0 if exact else 1e-5
            torch.testing.assert_close(found.metrics[name], values, rtol=0, atol=near)
        torch.testing.assert_close(found.path_length, factor * expected.path_length)
        assert found.belief.equal(expected.belief) or not exact


def test_a_team_flies_at_another_scale_without_further_settings(tmp_path: Path) -> None:
    team = load_team(str(save_team(tmp_path / "team.pt", small_config(dims=(60.0, 30.0)))))
    table = "sensor.model.table={20: 0.01, 40: 0.265, 60: 0.375}"
    limits = "experiment.constraints."
    scale = [f"{limits}spacing=20", f"{limits}min_altitude=20", f"{limits}max_altitude=60"]
    sides = ["environment.x_dim=240", "environment.y_dim=120"]
    config = mission_config(None, [*scale, *sides, table], team)
    assert trained_team(config, team, "cpu").modules["actor"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"constraints": {"min_altitude": 10.0}, "max_altitude": 20.0}, "min_altitude / spacing"),
        ({"max_altitude": 20.0}, "max_altitude is 15 there, 20 here"),
        ({"sensor": {"field_of_view": {"angle_x": 70.0}}}, "angle_x is 60 there, 70 here"),
    ],
)
def test_other_ratios_are_refused_by_the_key(tmp_path: Path, changes: Any, key: str) -> None:
    seen: dict[str, Any] = {"observation": SEEN}
    team = load_team(str(save_team(tmp_path / "team.pt", small_config(**seen))))
    with pytest.raises(ConfigError, match=key):
        trained_team(small_config(dims=(60.0, 40.0), **(seen | changes)), team, "cpu")
