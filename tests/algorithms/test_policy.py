import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical

from marl_framework.algorithms.policy import (
    epsilon_at,
    kl_divergence,
    log_probabilities,
    policy_entropy,
    policy_probabilities,
    sample_actions,
)


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
