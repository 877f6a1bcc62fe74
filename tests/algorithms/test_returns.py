from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.algorithms.losses import td_lambda_returns


def draws(steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(steps, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(steps, 3, 2, generator=generator, dtype=torch.float64)
    return rewards, values


@given(
    steps=st.integers(1, 20),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
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


def test_lambda_zero_is_td_zero():
    rewards, values = draws(6)
    got = td_lambda_returns(rewards, values, 0.9, 0.0)
    torch.testing.assert_close(got[:-1], rewards[:-1].unsqueeze(-1) + 0.9 * values[1:])


def test_lambda_one_is_monte_carlo():
    rewards, values = draws(6)
    got = td_lambda_returns(rewards, values, 0.9, 1.0)
    for t in range(6):
        discounted = sum(0.9**k * rewards[t + k] for k in range(6 - t))
        torch.testing.assert_close(got[t], discounted.unsqueeze(-1).expand(3, 2))


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_the_last_target_is_the_last_reward(lambda_):
    rewards = torch.tensor([[0.0], [1.0]])
    got = td_lambda_returns(rewards, torch.full((2, 1, 1), 7.0), 0.99, lambda_)
    assert got[-1].item() == 1.0
