from __future__ import annotations

import pytest
import torch
from torchrl.envs import ActionMask, Compose, RewardSum, TransformedEnv
from torchrl.envs.utils import check_env_specs, check_marl_grouping

from marl_framework.integrations.torchrl import MissionEnv
from tests.integrations.core_flight import fly
from tests.small import small_config

CONFIG = small_config()
ACTION, MASK = ("uavs", "action"), ("uavs", "action_mask")


def _masked(env: MissionEnv) -> TransformedEnv:
    return TransformedEnv(env, ActionMask(action_key=ACTION, mask_key=MASK))


@pytest.mark.parametrize("with_state", [False, True])
def test_torchrls_own_checks_pass(with_state: bool) -> None:
    env = MissionEnv(CONFIG, 4, with_state=with_state)
    check_env_specs(env)
    check_env_specs(_masked(env))
    check_marl_grouping(env.group_map, env.agent_names)
    assert ("state" in env.observation_spec) == with_state


def test_rewards_and_observations_are_the_cores() -> None:
    """Two episodes: the second one starts by itself, as in a collector."""
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
    length = CONFIG.missions.episode_length
    over = (torch.arange(len(flight.actions)) % length == length - 1).expand(4, -1).unsqueeze(-1)
    assert torch.equal(data["next", "done"], over)
    assert torch.equal(data["next", "terminated"], over)
    assert not data["next", "truncated"].any()
    for episode, last in enumerate(flight.last):
        step = (episode + 1) * length - 1
        assert torch.equal(data["next", "uavs", "observation"][:, step], last)


def test_some_missions_start_anew_and_the_others_keep_every_bit() -> None:
    env = MissionEnv(CONFIG, 4)
    data = env.rollout(2)[:, -1]["next"].exclude(("uavs", "reward"))
    before = env.missions.state.clone()
    again = torch.tensor([[True], [False], [False], [True]])
    after = env.reset(data.clone().set("_reset", again))
    for name, tensor in env.missions.state.tensors():
        assert torch.equal(tensor[1:3], dict(before.tensors())[name][1:3]), name
    assert env.missions.state.t.tolist() == [0, 2, 2, 0]
    kept = after["uavs", "observation"]
    assert torch.equal(kept[1:3], data["uavs", "observation"][1:3])
    assert not torch.equal(kept[0], data["uavs", "observation"][0])


def test_masked_random_actions_are_allowed_and_episodes_follow_one_another() -> None:
    mask = ActionMask(action_key=ACTION, mask_key=MASK)
    env = TransformedEnv(MissionEnv(CONFIG, 3), Compose(mask, RewardSum(reset_keys=["_reset"])))
    data = env.rollout(3 * CONFIG.missions.episode_length, break_when_any_done=False)
    assert data[MASK].gather(-1, data[ACTION].unsqueeze(-1)).all()
    assert data["next", "done"].sum().item() == 9
    per_episode = data["next", "uavs", "reward"].unflatten(1, (3, -1)).sum(2)
    length = CONFIG.missions.episode_length
    ends = data["next", "uavs", "episode_reward"][:, length - 1 :: length]
    torch.testing.assert_close(ends, per_episode)


def test_a_seed_gives_the_same_missions_again() -> None:
    env = MissionEnv(CONFIG, 2)
    env.set_seed(9)
    first = env.reset()["uavs", "observation"]
    assert not torch.equal(env.reset()["uavs", "observation"], first)
    env.set_seed(9)
    assert torch.equal(env.reset()["uavs", "observation"], first)


def test_what_was_returned_does_not_change_with_the_next_step() -> None:
    env = MissionEnv(CONFIG, 2, with_state=True)
    seen = env.reset()
    kept = seen.clone()
    env.step(seen.clone().set(ACTION, torch.ones(2, 3, dtype=torch.int64)))
    assert (seen == kept).all()


def test_the_mask_says_who_flies_and_gets_a_reward() -> None:
    env = MissionEnv(small_config(agents=(1, 3), budget=(1, 3)), 12)
    check_env_specs(env)
    data = _masked(env).rollout(4, break_when_any_done=False)
    flies, reward = data["uavs", "mask"], data["next", "uavs", "reward"].squeeze(-1)
    assert set(flies[:, 0].sum(1).tolist()) == {1, 3}
    assert flies.any(2).all()  # what is over starts anew
    assert reward[~flies].eq(0).all()
    assert reward[flies].ne(0).all()
    over = data["next", "terminated"].squeeze(-1)
    assert set(over.int().argmax(1).tolist()) == {1, 3}


def test_there_is_no_mask_where_all_fly() -> None:
    assert ("uavs", "mask") not in MissionEnv(CONFIG, 2).observation_spec.keys(True)
