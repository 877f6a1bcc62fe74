from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict, config_to_dict
from marl_framework.exporting.portable import PortableActor, PortableTeam, mission_facts
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import LearnedPlanner
from tests.small import random_actions, small_config

WINDOW = {"window": 5, "other_actions": False, "places": True, "team_moves": True, "area": True}
WORLDS: list[dict[str, Any]] = [
    {},
    {"agents": 1, "actions": 4},
    {"actions": 27, "dims": (30.0, 40.0), "prior": 0.3},
    {"actions": 9, "uav": {"communication_range": 8.0, "failure_rate": 0.3}},
    {"observation": {"centred_entropy": True, "centred_footprint": True, "budget": False}},
    {"prior": 0.4, "observation": {"uncertainty": True, "centred_uncertainty": True}},
    {"agents": 5, "observation": {"sector": True}},
    {"dims": (40.0, 30.0), "observation": WINDOW},
]


@pytest.mark.parametrize("world", WORLDS)
def test_a_portable_team_flies_like_the_learned_planner(
    world: dict[str, Any], device: torch.device
) -> None:
    config = small_config(**world)
    env = MissionEnvironment(config, 6, device)
    coma = COMAWrapper(config, config.network_sizes, device)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = LearnedPlanner(coma.act, builder, env.lattice)
    team = PortableTeam(coma.actor, config, device)
    one = PortableActor(coma.actor)
    state = env.reset()
    starts, moved = state.positions.clone(), 0
    for _ in range(env.episode_length):
        expected, masks, *_ = planner.act(state, env.generator)
        given = vars(state) | {"starts": starts}
        actions, policy = team(*(given[name] for name in team.inputs))
        assert torch.equal(actions, expected)
        alone = one(builder.actor(state).flatten(0, 1), masks.flatten(0, 1))
        torch.testing.assert_close(alone, policy.flatten(0, 1), atol=1e-5, rtol=0)
        torch.testing.assert_close(policy.sum(-1), torch.ones_like(policy[..., 0]))
        assert (policy[~masks] == 0).all()
        env.step(state, random_actions(env, state, env.generator))
        dealt = env.lattice.sectors.deal(state.positions, state.team_size)
        moved += int((dealt != state.sector).sum())
    assert (moved > 0) == (config.missions.most_agents > 1)


def test_starts_are_not_forgotten() -> None:
    config = small_config(observation={"sector": True})
    env = MissionEnvironment(config, 2, "cpu")
    team = PortableTeam(COMAWrapper(config, config.network_sizes, "cpu").actor, config, "cpu")
    state = env.reset()
    with pytest.raises(ValueError, match="starts"):
        team(*(getattr(state, name) for name in team.inputs[:-1]))


def test_the_facts_of_a_mission_are_those_of_its_camera_and_lattice() -> None:
    config = small_config(dims=(30.0, 40.0), uav={"communication_range": float("inf")})
    env = MissionEnvironment(config, 5, "cpu")
    facts = mission_facts(config)
    state = env.reset()
    seen = env.camera.footprint(state.positions)
    for e in range(5):
        for i, (x, y, z) in enumerate(state.positions[e].tolist()):
            rows = [int(field[e, i]) for field in (seen.row0, seen.row1, seen.window_row)]
            cols = [int(field[e, i]) for field in (seen.col0, seen.col1, seen.window_col)]
            assert (facts["rows"][x][z], facts["cols"][y][z]) == (rows, cols)
    assert facts["communication_range"] == 1e9
    assert facts["moves"] == env.episode_length
    assert facts["offsets"] == env.lattice.offsets.tolist()


def test_missions_that_differ_have_no_facts() -> None:
    config = small_config(agents=(2, 3), uav={"communication_range": (0.0, 25.0)})
    with pytest.raises(ConfigError, match=r"missions\.n_agents and .*communication_range"):
        mission_facts(config)


@pytest.mark.parametrize(
    "drawn",
    [
        {"communication_range": (0.0, 25.0)},
        {"communication_range": (float("inf"), 15.0)},
        {"failure_rate": (0.0, 0.3), "crash_rate": (0.0, 0.1)},
    ],
)
def test_the_error_of_missions_that_differ_offers_values_that_work(drawn: dict[str, Any]) -> None:
    config = small_config(uav=drawn)
    with pytest.raises(ConfigError) as caught:
        mission_facts(config)
    offered = re.findall(r"--set (\S+)", str(caught.value))
    assert len(offered) == len(drawn)
    for name, value in (text.split("=") for text in offered):
        assert float(value) in drawn[name.rpartition(".")[2]]
    mission_facts(config_from_dict(config_to_dict(config), overrides=offered))
