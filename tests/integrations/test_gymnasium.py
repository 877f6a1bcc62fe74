from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from marl_framework.config.errors import ConfigError
from marl_framework.integrations.gymnasium import ENV_ID, MissionVectorEnv
from tests.integrations.core_flight import fly
from tests.small import small_config
from tests.soaking import in_soak

CONFIG = small_config()
LENGTH = CONFIG.missions.episode_length


@pytest.mark.parametrize("mode", [None, *in_soak("rgb_array", "human")])
def test_gymnasiums_checker_passes(mode: str | None, screen: list[Any]) -> None:
    check_env(gymnasium.make(ENV_ID, config=CONFIG, render_mode=mode).unwrapped)
    assert len(screen) > 0  # it tries the other modes too


def test_the_vector_environment_has_the_single_ones_spaces_and_entries() -> None:
    """`SyncVectorEnv` of single missions is Gymnasium's reference of a vector environment."""
    ours = gymnasium.make_vec(ENV_ID, num_envs=3, config=CONFIG)
    theirs = gymnasium.make_vec(ENV_ID, num_envs=3, vectorization_mode="sync", config=CONFIG)
    assert isinstance(ours.unwrapped, MissionVectorEnv)
    for space in ("observation", "action", "single_observation", "single_action"):
        assert getattr(ours, f"{space}_space") == getattr(theirs, f"{space}_space")
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    ours.action_space.seed(1)
    for env in (ours, theirs):
        env.reset(seed=3)
    for _ in range(2 * LENGTH + 3):
        actions = ours.action_space.sample()
        a, b = (env.step(actions) for env in (ours, theirs))
        assert ours.observation_space.contains(a[0])
        assert [x.shape for x in a[:4]] == [x.shape for x in b[:4]]
        assert np.array_equal(a[2], b[2])
        assert a[4].keys() == b[4].keys()
        assert a[4]["action_mask"].shape == b[4]["action_mask"].shape


@pytest.mark.parametrize(
    ("seen", "agents", "budget"), [("team_size", 33, 2), ("team_moves", 4, 20)]
)
def test_observations_of_large_teams_and_after_the_last_move_are_in_the_space(
    seen: str, agents: int, budget: int
) -> None:
    dims = (30.0, 30.0) if agents > 9 else (10.0, 10.0)
    observation = {seen: True}
    config = small_config(agents=agents, budget=budget, dims=dims, observation=observation)
    env = MissionVectorEnv(config, num_envs=2)
    env.action_space.seed(1)
    states = [env.reset(seed=1)[0]]
    for _ in range(budget + 1):
        states.append(env.step(env.action_space.sample())[0])
    assert all(env.observation_space.contains(state) for state in states)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rewards_and_observations_are_the_cores(mode: AutoresetMode) -> None:
    flight = fly(CONFIG, 4)
    env = MissionVectorEnv(CONFIG, 4, autoreset_mode=mode)
    seen, _ = env.reset()
    for step, actions in enumerate(flight.actions):
        assert np.array_equal(seen, flight.observations[step].numpy())
        seen, rewards, over, cut, info = env.step(actions.numpy())
        assert np.array_equal(rewards, flight.rewards[step].numpy())
        assert over.all() == over.any() == (step % LENGTH == LENGTH - 1)
        assert not cut.any()
        if not over.all():
            continue
        final = flight.last[step // LENGTH].numpy()
        if mode == AutoresetMode.SAME_STEP:
            assert np.array_equal(np.stack(info["final_obs"]), final)
            assert info["final_info"]["action_mask"].shape == (4, 3, 6)
            continue
        assert np.array_equal(seen, final)
        if mode == AutoresetMode.NEXT_STEP:
            seen, rewards, over, cut, _ = env.step(actions.numpy())
            assert [x.any() for x in (rewards, over, cut)] == [False] * 3
        else:
            seen, _ = env.reset(options={"reset_mask": np.ones(4, bool)})


def test_some_missions_restart_and_the_others_continue() -> None:
    env, moves = MissionVectorEnv(CONFIG, 3, autoreset_mode="Disabled"), np.ones((3, 3), int)
    env.reset(seed=1)
    before = env.step(moves)[0]
    after, _ = env.reset(options={"reset_mask": np.array([True, False, True])})
    changed = [not np.array_equal(x, y) for x, y in zip(before, after, strict=True)]
    assert changed == [True, False, True]
    for _ in range(LENGTH - 1):
        over = env.step(moves)[2]
    assert over.tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"missions \[1\]"):
        env.step(moves)


@pytest.mark.parametrize(
    "actions", [[[0, 6, 0]] * 2, [[0, -1, 0]] * 2, [[0, 0, 0]], [[0, 1.9, 0]] * 2]
)
def test_actions_that_do_not_exist_are_refused(actions: list[list[float]]) -> None:
    env = MissionVectorEnv(CONFIG, 2)
    env.reset()
    with pytest.raises(ValueError, match=r"^actions \[\[0"):
        env.step(np.array(actions))


def test_gymnasiums_wrappers_count_whole_episodes() -> None:
    env = RecordEpisodeStatistics(MissionVectorEnv(CONFIG, 2))
    env.reset(seed=np.int64(1))  # type: ignore[arg-type]  # an element of an array of seeds
    for _ in range(LENGTH):
        info = env.step(env.action_space.sample())[4]
    assert info["episode"]["l"].tolist() == [LENGTH] * 2


@pytest.mark.parametrize(
    ("mode", "arguments", "name"),
    [
        ("NextStep", {"seed": [1, 2]}, "seed"),
        ("NextStep", {"options": {"reset_mask": np.array([True, False])}}, "reset_mask"),
        ("Disabled", {"options": {"reset_mask": np.array([True])}}, "reset_mask"),
        ("Disabled", {"options": {"reset_mask": np.array([1, 0])}}, "reset_mask"),
        ("Disabled", {"options": {"reset_mask": [[True, False]]}}, "reset_mask"),
    ],
)
def test_bad_resets_are_refused(mode: str, arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} "):
        MissionVectorEnv(CONFIG, 2, autoreset_mode=mode).reset(**arguments)


def test_images_of_all_missions(screen: list[Any]) -> None:
    env = MissionVectorEnv(CONFIG, 2, render_mode="rgb_array")
    env.reset()
    images = env.render()
    assert images is not None
    assert [image.shape for image in images] == [(380, 720, 3)] * 2
    shown = MissionVectorEnv(CONFIG, 2, render_mode="human")
    shown.reset()
    shown.step(shown.action_space.sample())
    assert len(screen) == 2
    assert shown.render() is None
    shown.close()


def test_active_marks_the_uavs_that_fly() -> None:
    mixed = small_config(agents=(1, 3))
    check_env(gymnasium.make(ENV_ID, config=mixed).unwrapped, skip_render_check=True)
    _, info = MissionVectorEnv(mixed, 20).reset(seed=1)
    assert info["active"].shape == (20, 3)
    assert set(info["active"].sum(1).tolist()) == {1, 3}
    assert "active" not in MissionVectorEnv(CONFIG, 2).reset()[1]


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"budget": (1, 3)}, r"experiment\.constraints\.budget"),
        (
            {"constraints": {"cost": {"limit": 50.0}}, "uav": {"crash_rate": 0.1}},
            r"experiment\.constraints\.cost\.limit and experiment\.uav\.crash_rate",
        ),
    ],
)
def test_missions_of_different_lengths_need_manual_resets(
    settings: dict[str, Any], keys: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{keys}: "):
        MissionVectorEnv(small_config(**settings), 2)


def test_missions_of_different_lengths_are_reset_by_mask() -> None:
    env = MissionVectorEnv(small_config(budget=(1, 3)), 8, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=1)
    for _ in range(2):
        _, _, over, _, info = env.step(np.zeros((8, 3), int))
        assert np.array_equal(info["active"].any(1), ~over)
    assert 0 < over.sum() < 8
    first = over & (over.cumsum() == 1)
    for mask in (~over, first):  # not all that are over
        env.reset(options={"reset_mask": mask})
        with pytest.raises(ValueError, match="missions"):
            env.step(np.zeros((8, 3), int))
    _, info = env.reset(options={"reset_mask": over})
    assert info["active"].all()
