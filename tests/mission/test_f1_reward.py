"""The reward for what the belief gains in F1."""

from __future__ import annotations

import torch
from sklearn.metrics import f1_score

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from tests.small import random_actions, small_config


def plain_f1(state: MissionState, e: int) -> float:
    predicted = (state.global_belief[e] > 0.501).flatten()
    return float(f1_score(state.truth[e].flatten(), predicted, zero_division=0.0))


def test_it_is_added_to_the_reward_in_each_step() -> None:
    envs = [
        MissionEnvironment(
            small_config(budget=5, experiment={"reward": {"f1_scale": scale}}), 4, "cpu"
        )
        for scale in (7.0, 0.0)
    ]
    state, plain = (env.reset(env.draw_reset()) for env in envs)
    generator = torch.Generator().manual_seed(0)
    before = [plain_f1(state, e) for e in range(4)]
    for _ in range(6):
        actions = random_actions(envs[0], state, generator)
        found = envs[0].step(state, actions, envs[0].draw_step())
        expected = envs[1].step(plain, actions, envs[1].draw_step())
        now = [plain_f1(state, e) for e in range(4)]
        gained = 7 * (torch.tensor(now) - torch.tensor(before))
        torch.testing.assert_close(found.reward - expected.reward, gained, rtol=0, atol=1e-5)
        assert found.relative.equal(expected.relative)
        before = now
    assert any(before)
    assert not plain.f1.any()


def test_missions_that_start_anew_begin_at_their_first_reading() -> None:
    env = MissionEnvironment(small_config(experiment={"reward": {"f1_scale": 1.0}}), 4, "cpu")
    state = env.reset(env.draw_reset())
    generator = torch.Generator().manual_seed(0)
    env.step(state, random_actions(env, state, generator), env.draw_step())
    kept = state.f1.clone()
    env.reset(env.draw_reset(), state, torch.tensor([True, False, False, True]))
    assert state.f1[1:3].equal(kept[1:3])
    for e in range(4):
        assert abs(float(state.f1[e]) - plain_f1(state, e)) < 1e-6
