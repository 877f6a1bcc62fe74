from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test, render_test
from pettingzoo.utils.conversions import parallel_to_aec

from marl_framework.integrations.pettingzoo import MissionParallelEnv
from tests.integrations.core_flight import fly
from tests.small import small_config


def test_pettingzoos_own_checks_pass(screen: list[Any]) -> None:
    def make(render_mode: str) -> Any:
        return parallel_to_aec(MissionParallelEnv(small_config(), render_mode=render_mode))

    parallel_api_test(MissionParallelEnv(small_config()), num_cycles=50)
    parallel_seed_test(lambda: MissionParallelEnv(small_config()))
    render_test(make)
    assert len(screen) > 5


def test_rewards_and_observations_are_the_cores() -> None:
    config = small_config()
    flight = fly(config, 1)
    env = MissionParallelEnv(config)
    seen, _ = env.reset()
    for step, actions in enumerate(flight.actions[:, 0].tolist()):
        for i, name in enumerate(env.agents):
            expected = flight.observations[step, 0, i].numpy()
            assert np.array_equal(seen[name]["observation"], expected)
        seen, rewards, over, cut, _ = env.step(dict(zip(env.agents, actions, strict=True)))
        assert set(rewards.values()) == {flight.rewards[step, 0].item()}
        assert not any(cut.values())
        last = step % config.missions.episode_length == config.missions.episode_length - 1
        assert set(over.values()) == {last}
        if last:
            assert env.agents == []
            assert env.step({}) == ({}, {}, {}, {}, {})
            seen, _ = env.reset()


def test_masks_are_of_the_agents_own_moves() -> None:
    env = MissionParallelEnv(small_config(missions={"start": "corners"}), seed=1)
    seen, _ = env.reset()
    top = [seen[name]["action_mask"][0] for name in env.agents]  # up, from the highest level
    assert top == [0, 0, 0]
    assert env.state_space.contains(env.state())


@pytest.mark.parametrize(
    ("actions", "named"),
    [({"uav_1": 1}, "uav_0, uav_2 missing"), ({"uav_0": 0, "uav_1": 6, "uav_2": 0}, "0, 6, 0")],
)
def test_every_agent_must_act_and_only_by_actions_that_exist(
    actions: dict[str, int], named: str
) -> None:
    env = MissionParallelEnv(small_config())
    with pytest.raises(AssertionError, match=r"reset\(\)"):
        env.step(actions)
    env.reset()
    with pytest.raises(ValueError, match=f"^actions.*{named}"):
        env.step(actions)


def test_agents_are_those_that_fly() -> None:
    config = small_config(agents=(1, 3), budget=(1, 3))
    env, found = MissionParallelEnv(config), set()
    for _ in range(12):
        seen, infos = env.reset()
        team, moves = len(env.agents), 0
        assert env.agents == env.possible_agents[:team]
        assert list(seen) == list(infos) == env.agents
        while env.agents:
            _, rewards, *_ = env.step(dict.fromkeys(env.agents, 0))
            assert len(rewards) == team
            moves += 1
        found.add((team, moves))
    assert found == {(1, 2), (1, 4), (3, 2), (3, 4)}


@pytest.mark.parametrize(
    "ending",
    [
        {"constraints": {"cost": {"limit": (11.0, 30.0), "climb": 0.0}}},
        {"uav": {"crash_rate": 0.3}},
    ],
)
def test_an_agent_ends_with_its_last_move(ending: dict[str, Any]) -> None:
    env = MissionParallelEnv(small_config(budget=9, **ending))
    seen, _ = env.reset()
    ends: dict[str, int] = {}
    for move in range(10):
        if not env.agents:
            break
        actions = {name: int(seen[name]["action_mask"].nonzero()[0][-1]) for name in env.agents}
        seen, _, over, *_ = env.step(actions)
        assert env.agents == [name for name in over if not over[name]]
        ends |= {name: move for name in over if over[name]}
    assert set(ends) == set(env.possible_agents)
    assert len(set(ends.values())) > 1
