"""TD(λ) targets."""

from __future__ import annotations

import torch
from torch import Tensor


def td_lambda_returns(rewards: Tensor, values: Tensor, gamma: float, lambda_: float) -> Tensor:
    """Return G_t = r_t + γ·[(1 - λ)·Q̄_{t+1} + λ·G_{t+1}] for whole episodes, one reverse scan.

    The episode ends with the last step, so G there is its reward. λ = 0 gives TD(0) targets,
    λ = 1 discounted sums (Sutton & Barto 2018, section 12.3).

    Args:
        rewards: [T, E], shared by the team.
        values: the target critic's value of the action taken, Q̄(s_t, a_t), [T, E, N].
        gamma: discount.
        lambda_: trace decay.

    Returns:
        Targets [T, E, N].
    """
    rewards = rewards.unsqueeze(-1).expand_as(values)
    returns = torch.empty_like(values)
    returns[-1] = rewards[-1]
    for t in range(len(values) - 2, -1, -1):
        bootstrap = (1 - lambda_) * values[t + 1] + lambda_ * returns[t + 1]
        returns[t] = rewards[t] + gamma * bootstrap
    return returns
