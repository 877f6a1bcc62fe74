"""Rewards that count ground outside the region of interest: gain in F1, and in entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.reward import Utility, with_outside
from marl_framework.mission.state import MissionState
from tests.small import random_actions, small_config


def plain_f1(state: MissionState, e: int) -> float:
    predicted = (state.global_belief[e] > 0.501).flatten()
    return float(f1_score(state.truth[e].flatten(), predicted, zero_division=0.0))


def environments(*rewards: dict[str, Any], **options: Any) -> list[MissionEnvironment]:
    """Return the same missions with different rewards."""
    return [
        MissionEnvironment(small_config(experiment={"reward": reward}, **options), 4, "cpu")
        for reward in rewards
    ]


def test_the_gain_in_f1_is_added_to_the_reward_in_each_step() -> None:
    envs = environments({"f1_scale": 7.0}, {}, budget=5)
    state, plain = (env.reset() for env in envs)
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
    (env,) = environments({"f1_scale": 1.0, "outside_weight": 0.5})
    state = env.reset()
    generator = torch.Generator().manual_seed(0)
    env.step(state, random_actions(env, state, generator))
    kept, kept_entropy = state.f1.clone(), state.entropy.clone()
    env.reset(state=state, mask=torch.tensor([True, False, False, True]))
    assert state.f1[1:3].equal(kept[1:3])
    assert state.entropy[1:3].equal(kept_entropy[1:3])
    left = plain_entropy(state.global_belief.double().numpy()).sum((1, 2))
    np.testing.assert_allclose(state.entropy, left, rtol=1e-5)
    for e in range(4):
        assert abs(float(state.f1[e]) - plain_f1(state, e)) < 1e-6


def plain_entropy(belief: NDArray[np.float64]) -> NDArray[np.float64]:
    p = belief.clip(1e-4, 1 - 1e-4)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_entropy_outside_counts_by_its_weight(weight: float, compiled: bool) -> None:
    settings = {"outside_weight": weight, "relative_scale": 7, "relative_offset": 2}
    envs = environments(settings, {}, budget=5, compute={"compile": compiled}, prior=0.45)
    state, plain = (env.reset() for env in envs)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        before = plain_entropy(state.global_belief.double().numpy())
        actions = random_actions(envs[0], state, generator)
        found = envs[0].step(state, actions, envs[0].draw_step())
        expected = envs[1].step(plain, actions, envs[1].draw_step())
        belief = state.global_belief.double().numpy()
        of_interest = np.where(belief > 0.501, 1.0, np.where(belief < 0.499, 0.0, 0.5))
        weights = weight + (1 - weight) * of_interest
        gained = (weights * (before - plain_entropy(belief))).sum((1, 2))
        relative = gained / (weights * before).sum((1, 2))
        np.testing.assert_allclose(found.reward, 7 * relative + 2, rtol=0, atol=2e-5)
        assert found.relative.equal(expected.relative)
        assert found.absolute.equal(expected.absolute)
        np.testing.assert_allclose(state.entropy, plain_entropy(belief).sum((1, 2)), rtol=1e-6)


def test_nothing_left_is_no_gain() -> None:
    env = MissionEnvironment(small_config(), 1, "cpu")
    state = env.reset()
    zero, one = torch.zeros(1), torch.ones(1)

    def relative(left: Tensor, gain: Tensor, all_left: Tensor, all_gain: Tensor) -> float:
        state.weighted_entropy.copy_(left)
        state.entropy.copy_(all_left)
        found = with_outside(Utility(gain, zero, all_gain), state, 1, 0.5)
        return found.relative.item()

    assert relative(zero, zero, zero, zero) == 0
    assert relative(zero, one, one, zero) == 0.5
