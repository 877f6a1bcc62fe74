from __future__ import annotations

import pytest
import torch
from torchrl.envs import ActionMask, Compose, RewardSum, TransformedEnv
from torchrl.envs.utils import check_env_specs, check_marl_grouping

from marl_framework.integrations.torchrl import MissionEnv
from tests.integrations.core_flight import fly
from tests.small import small_config

CONFIG = small_config()
LENGTH = CONFIG.missions.episode_length
ACTION, MASK = ("uavs", "action"), ("uavs", "action_mask")


def _masked(env: MissionEnv, *others: RewardSum) -> TransformedEnv:
    return TransformedEnv(env, Compose(ActionMask(action_key=ACTION, mask_key=MASK), *others))


@pytest.mark.parametrize("with_state", [False, True])
def test_torchrls_own_checks_pass(with_state: bool) -> None:
    env = MissionEnv(CONFIG, 4, with_state=with_state)
    check_env_specs(env)
    check_env_specs(_masked(env))
    check_marl_grouping(env.group_map, env.agent_names)
    assert ("state" in env.observation_spec) == with_state


def test_rewards_and_observations_are_the_cores() -> None:
    """Two episodes: the second one starts automatically, as in a collector."""
    flight = fly(CONFIG, 4)
    steps = iter(flight.actions)
    data = MissionEnv(CONFIG, 4).rollout(
        len(flight.actions),
        lambda tensordict: tensordict.set(ACTION, next(steps)),
        break_when_any_done=False,
    )
    rewards = data["next", "uavs", "reward"]
    assert torch.equal(rewards, flight.rewards.mT[:, :, None, None].expand_as(rewards))
    assert torch.equal(data["uavs", "observation"].transpose(0, 1), flight.observations)
    over = (torch.arange(len(flight.actions)) % LENGTH == LENGTH - 1).expand(4, -1).unsqueeze(-1)
    assert torch.equal(data["next", "done"], over)
    assert torch.equal(data["next", "terminated"], over)
    assert not data["next", "truncated"].any()
    last = data["next", "uavs", "observation"][:, LENGTH - 1 :: LENGTH]
    assert torch.equal(last.transpose(0, 1), flight.last)


def test_some_missions_restart_and_the_others_keep_every_bit() -> None:
    env = MissionEnv(CONFIG, 4)
    data = env.rollout(2)[:, -1]["next"].exclude(("uavs", "reward"))
    before = dict(env.missions.state.clone().tensors())
    again = torch.tensor([[True], [False], [False], [True]])
    after = env.reset(data.clone().set("_reset", again))
    for name, tensor in env.missions.state.tensors():
        assert torch.equal(tensor[1:3], before[name][1:3]), name
    assert env.missions.state.t.tolist() == [0, 2, 2, 0]
    kept = after["uavs", "observation"]
    assert torch.equal(kept[1:3], data["uavs", "observation"][1:3])
    assert not torch.equal(kept[0], data["uavs", "observation"][0])


def test_masked_random_actions_are_allowed_and_episodes_follow_one_another() -> None:
    env = _masked(MissionEnv(CONFIG, 3), RewardSum(reset_keys=["_reset"]))
    data = env.rollout(3 * LENGTH, break_when_any_done=False)
    assert data[MASK].gather(-1, data[ACTION].unsqueeze(-1)).all()
    assert data["next", "done"].sum().item() == 9
    per_episode = data["next", "uavs", "reward"].unflatten(1, (3, -1)).sum(2)
    ends = data["next", "uavs", "episode_reward"][:, LENGTH - 1 :: LENGTH]
    torch.testing.assert_close(ends, per_episode)


def test_a_seed_repeats_missions() -> None:
    env, seen = MissionEnv(CONFIG, 2), []
    for seed in (9, None, 9):
        if seed is not None:
            env.set_seed(seed)
        seen.append(env.reset()["uavs", "observation"])
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])


def test_a_step_does_not_change_earlier_results() -> None:
    env = MissionEnv(CONFIG, 2, with_state=True)
    seen = env.reset()
    kept = seen.clone()
    env.step(seen.clone().set(ACTION, torch.ones(2, 3, dtype=torch.int64)))
    assert (seen == kept).all()


def test_the_mask_marks_the_uavs_that_fly_and_get_a_reward() -> None:
    assert ("uavs", "mask") not in MissionEnv(CONFIG, 2).observation_spec.keys(True)
    env = MissionEnv(small_config(agents=(1, 3), budget=(1, 3)), 12)
    check_env_specs(env)
    data = _masked(env).rollout(4, break_when_any_done=False)
    flies, reward = data["uavs", "mask"], data["next", "uavs", "reward"].squeeze(-1)
    assert set(flies[:, 0].sum(1).tolist()) == {1, 3}
    assert flies.any(2).all()  # missions that are over restart
    assert reward[~flies].eq(0).all()
    assert reward[flies].ne(0).all()
    over = data["next", "terminated"].squeeze(-1)
    assert set(over.int().argmax(1).tolist()) == {1, 3}


@pytest.mark.parametrize("action", [-1, 6])
def test_an_action_out_of_range_is_named(action: int) -> None:
    env = MissionEnv(CONFIG, 2)
    seen = env.reset().set(ACTION, torch.full((2, 3), action))
    with pytest.raises(ValueError, match=f"^actions.*{action}"):
        env.step(seen)
