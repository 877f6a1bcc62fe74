from __future__ import annotations

import pytest
import torch

from marl_framework.algorithms.losses import (
    actor_loss,
    counterfactual_advantage,
    critic_loss,
    normalized,
)
from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from tests.small import small_config


def batch(size=16, actions=5):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(size, actions, generator=generator)
    mask = torch.rand(size, actions, generator=generator) < 0.7
    mask[:, 0] = True
    pi = policy_probabilities(torch.randn(size, actions, generator=generator), mask, 0.1)
    return values, pi


def test_the_policy_weighted_advantage_is_zero():
    values, pi = batch()
    advantages = torch.stack(
        [
            counterfactual_advantage(values, pi, torch.full((16,), a))
            for a in range(values.shape[1])
        ],
        dim=1,
    )
    torch.testing.assert_close((pi * advantages).sum(1), torch.zeros(16), atol=1e-6, rtol=0)


def test_with_one_agent_the_advantage_is_q_minus_v():
    """One agent's baseline marginalises the only action there is, so it is V."""
    values, pi = batch()
    actions = torch.arange(16) % 5
    v = torch.stack([sum(pi[b, a] * values[b, a] for a in range(5)) for b in range(16)])
    q = values[torch.arange(16), actions]
    torch.testing.assert_close(counterfactual_advantage(values, pi, actions), q - v)


def test_returns_take_the_place_of_the_value_of_the_action_taken_alone():
    values, pi = batch()
    actions, returns = torch.arange(16) % 5, torch.linspace(-1, 1, 16)
    expected = [returns[b] - sum(pi[b, a] * values[b, a] for a in range(5)) for b in range(len(pi))]
    found = counterfactual_advantage(values, pi, actions, returns)
    torch.testing.assert_close(found, torch.stack(expected))


def test_critic_loss_is_the_mean_squared_error_of_the_action_taken():
    values = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
    loss = critic_loss(values, torch.tensor([0, 1]), torch.tensor([0.0, 5.0]))
    assert loss.item() == pytest.approx((1 + 4) / 2)


def test_actor_loss_raises_the_probability_of_better_actions_and_holds_advantages_constant():
    logits = torch.zeros(1, 3, requires_grad=True)
    advantages = torch.tensor([2.0], requires_grad=True)
    pi = policy_probabilities(logits, torch.ones(1, 3, dtype=torch.bool), 0.0)
    actor_loss(pi, torch.tensor([1]), advantages, 0.0).backward()
    # d(-2·log softmax_1)/dlogits = 2·(softmax - onehot_1)
    torch.testing.assert_close(logits.grad, torch.tensor([[2 / 3, -4 / 3, 2 / 3]]))
    assert advantages.grad is None


def test_clipping_stops_the_gradient_of_what_has_moved_far_enough():
    logits = torch.zeros(4, 2, requires_grad=True)
    pi = policy_probabilities(logits, torch.ones(4, 2, dtype=torch.bool), 0.0)  # all 0.5
    actions = torch.zeros(4, dtype=torch.int64)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    # Ratios 1.25, 1, 1, 0.714: the first has risen, the last fallen by more than 20 %.
    old = torch.tensor([[0.4, 0.6], [0.5, 0.5], [0.5, 0.5], [0.7, 0.3]])
    loss = actor_loss(pi, actions, advantages, 0.0, old, clip_ratio=0.2)
    assert loss.item() == pytest.approx(-(1.2 + 1.0 - 1.0 - 0.8) / 4)
    loss.backward()
    assert logits.grad[0].tolist() == [0.0, 0.0]
    assert logits.grad[1, 0] < 0 < logits.grad[2, 0]
    assert logits.grad[3].tolist() == [0.0, 0.0]


def test_entropy_bonus_pulls_towards_uniform():
    logits = torch.tensor([[2.0, 0.0, 0.0]], requires_grad=True)
    pi = policy_probabilities(logits, torch.ones(1, 3, dtype=torch.bool), 0.0)
    actor_loss(pi, torch.tensor([0]), torch.zeros(1), 0.5).backward()
    assert logits.grad[0, 0] > 0 > logits.grad[0, 1]


def test_normalized_advantages():
    advantages = normalized(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert advantages.square().mean().item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(normalized(torch.full((4,), 3.0)), torch.zeros(4))


def test_the_baseline_can_depend_on_the_own_action_by_the_masks_of_later_uavs() -> None:
    """Why the gradient with returns is not exact: the docstring of the advantage says so."""
    config = small_config(agents=2)
    task = MissionTask(MissionEnvironment(config, 1, "cpu"))
    task.state.positions[0] = torch.tensor([[3, 3, 0], [1, 3, 0]])

    def critic_maps(own: int) -> torch.Tensor:
        """What the critic of the first UAV sees; the second takes its highest allowed action."""
        order = torch.arange(task.sizes.num_actions)
        actions, _ = task.choose_in_order(
            lambda i, mask: torch.tensor([own]) if i == 0 else (order * mask).argmax(-1)
        )
        return task.critic_maps(actions)[0, 0]

    seen = [critic_maps(own) for own in range(task.sizes.num_actions)]
    assert any(not torch.equal(seen[0], maps) for maps in seen)
