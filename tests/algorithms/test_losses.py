import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical

from marl_framework.algorithms.losses import (
    actor_loss,
    counterfactual_advantage,
    critic_loss,
    select_taken,
    td_lambda_returns,
    value_loss,
)
from marl_framework.algorithms.policy import (
    epsilon_at,
    kl_divergence,
    log_probabilities,
    policy_entropy,
    policy_probabilities,
    sample_actions,
)
from marl_framework.algorithms.ranks import normalized


def draws(steps, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(steps, 3, generator=generator, dtype=dtype)
    return rewards, torch.randn(steps, 3, 2, generator=generator, dtype=dtype)


@given(
    steps=st.integers(1, 20),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),  # 0 is TD(0), 1 is Monte Carlo
    seed=st.integers(0, 1000),
)
def test_the_scan_equals_the_weighted_sum_of_n_step_returns(steps, gamma, lambda_, seed):
    rewards, values = draws(steps, seed)
    got = td_lambda_returns(rewards, values, gamma, lambda_)
    for t in range(steps):
        expected, weight = torch.zeros(3, 2, dtype=torch.float64), 1.0
        for n in range(1, steps - t + 1):
            n_step = sum(gamma**k * rewards[t + k] for k in range(n)).unsqueeze(-1)
            last = t + n == steps
            if not last:
                n_step = n_step + gamma**n * values[t + n]
            expected = expected + (weight if last else (1 - lambda_) * weight) * n_step
            weight *= lambda_
        torch.testing.assert_close(got[t], expected.expand(3, 2))


def test_returns_end_with_the_last_action_of_an_agent():
    rewards, values = draws(6)
    active = (torch.tensor([3, 6]) > torch.arange(6).view(-1, 1, 1)).expand(6, 3, 2)
    found = td_lambda_returns(rewards, values, 0.9, 0.7, active)
    assert found[:, :, 1].equal(td_lambda_returns(rewards, values, 0.9, 0.7)[:, :, 1])
    short = td_lambda_returns(rewards[:3], values[:3], 0.9, 0.7)
    assert found[:3, :, 0].equal(short[:, :, 0])


def batch(size=16, actions=5):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(size, actions, generator=generator)
    mask = torch.rand(size, actions, generator=generator) < 0.7
    mask[:, 0] = True
    pi = policy_probabilities(torch.randn(size, actions, generator=generator), mask, 0.1)
    return values, pi


@pytest.mark.parametrize("returns", [None, torch.linspace(-1, 1, 16)])
def test_the_advantage_is_q_or_the_return_minus_v(returns):
    values, pi = batch()
    actions = torch.arange(16) % 5
    v = torch.stack([sum(pi[b, a] * values[b, a] for a in range(5)) for b in range(16)])
    gained = values[torch.arange(16), actions] if returns is None else returns
    found = counterfactual_advantage(values, pi, actions, returns)
    torch.testing.assert_close(found, gained - v)
    assert torch.equal(select_taken(values, actions), values[torch.arange(16), actions])


def test_critic_loss_is_the_mean_squared_error_of_the_action_taken():
    values = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
    loss = critic_loss(values, torch.tensor([0, 1]), torch.tensor([0.0, 5.0]))
    assert loss.item() == pytest.approx((1 + 4) / 2)


@pytest.mark.parametrize("clip", [0.0, 0.2])
@pytest.mark.parametrize("delta", [0.0, 0.5, 10.0])
def test_value_loss_is_the_larger_of_two(clip, delta):
    values, targets, old = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))

    def distance(error):
        if delta == 0:
            return error**2
        return error**2 / 2 if error <= delta else delta * (error - delta / 2)

    total, clipped = 0.0, 0
    for v, g, before in zip(values.tolist(), targets.tolist(), old.tolist(), strict=True):
        near = min(max(v, before - clip), before + clip) if clip else v
        total += max(distance(abs(v - g)), distance(abs(near - g)))
        clipped += distance(abs(near - g)) > distance(abs(v - g))
    found = value_loss(values, targets, old, clip, delta)
    assert found.item() == pytest.approx(total / 40, rel=1e-5)
    assert (clipped > 0) is (clip > 0)


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


def test_normalized_advantages():
    advantages = normalized(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert advantages.square().mean().item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(normalized(torch.full((4,), 3.0)), torch.zeros(4))


@given(seed=st.integers(0, 10**6), epsilon=st.floats(0, 1), actions=st.integers(1, 27))
def test_policy_is_a_distribution_over_allowed_actions_with_a_floor(seed, epsilon, actions):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(32, actions, generator=generator) * 20
    mask = torch.rand(32, actions, generator=generator) < 0.5
    mask[:, 0] |= ~mask.any(-1)
    pi = policy_probabilities(logits, mask, epsilon)
    torch.testing.assert_close(pi.sum(-1), torch.ones(32))
    assert (pi[~mask] == 0).all()
    floor = (epsilon / mask.sum(-1, keepdim=True)).expand_as(pi)
    assert (pi[mask] >= floor[mask] - 1e-6).all()
    for row in range(4):
        allowed = mask[row]
        expected = (1 - epsilon) * logits[row, allowed].softmax(0) + epsilon / allowed.sum()
        torch.testing.assert_close(pi[row, allowed], expected)


def test_samples_follow_the_policy_and_never_a_masked_action():
    pi = torch.tensor([0.0, 0.7, 0.25, 0.05, 0.0]).expand(100_000, -1)
    uniform = torch.rand(pi.shape, generator=torch.Generator().manual_seed(0))
    uniform[:10] = 0.0  # the draw that would break a plain logarithm
    anything = torch.ones_like(pi, dtype=torch.bool)
    counts = torch.bincount(sample_actions(pi, uniform, anything), minlength=5)
    assert counts[0] == 0
    assert counts[4] == 0
    torch.testing.assert_close(counts / 1e5, pi[0], atol=6e-3, rtol=0)


def test_a_policy_that_is_not_finite_samples_what_is_allowed():
    mask = torch.tensor([[False, True, False], [False, False, True]])
    uniform = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    assert sample_actions(torch.full((2, 3), torch.nan), uniform, mask).tolist() == [1, 2]


def test_log_probability_is_finite_and_flat_at_zero():
    pi = torch.tensor([0.0, 1.0], requires_grad=True)
    log_probabilities(pi).sum().backward()
    assert pi.grad.tolist() == [0.0, 1.0]
    assert torch.isfinite(log_probabilities(torch.zeros(2))).all()


def test_policy_entropy_in_nats():
    entropy = policy_entropy(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    assert entropy.tolist() == pytest.approx([0.6931, 0.0], abs=1e-4)


def test_kl_is_that_of_the_definition():
    old = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    new = torch.tensor([[0.25, 0.75, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    expected = torch.distributions.kl_divergence(Categorical(old), Categorical(new))
    torch.testing.assert_close(kl_divergence(old, new), expected)


def test_epsilon_falls_linearly_then_stays():
    values = [epsilon_at(k, 0.5, 0.1, 100) for k in (0, 50, 100, 1000)]
    assert values == pytest.approx([0.5, 0.3, 0.1, 0.1])
