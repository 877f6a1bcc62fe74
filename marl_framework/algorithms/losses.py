"""Targets, advantages and losses: of COMA (Foerster et al. 2018, equations 3–5) and of PPO."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from marl_framework.algorithms.policy import log_probabilities, policy_entropy
from marl_framework.algorithms.ranks import mean_over_ranks

DEVIATION_FLOOR = 1e-8
"""Added to the standard deviation by which advantages are divided."""


def taken(values: Tensor, actions: Tensor) -> Tensor:
    """Select the values [..., A] of the actions taken [...]."""
    return values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def mean_of(numbers: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of numbers [B], each times its weight [B] if there are weights."""
    return numbers.mean() if weights is None else (numbers * weights).mean()


def td_lambda_returns(
    rewards: Tensor,
    values: Tensor,
    gamma: float,
    lambda_: float,
    active: Tensor | None = None,
) -> Tensor:
    """Return G_t = r_t + γ·[(1 - λ)·Q̄_{t+1} + λ·G_{t+1}] for whole episodes, one reverse scan.

    The episode ends with the last step, so G there is its reward. λ = 0 gives TD(0) targets,
    λ = 1 discounted sums (Sutton & Barto 2018, section 12.3).

    Args:
        rewards: [T, E], shared by the team.
        values: Q̄(s_t, a_t) of the action taken, or V(s_t) of a critic of states, [T, E, N].
        gamma: discount.
        lambda_: trace decay.
        active: agents that act, [T, E, N] bool; an agent's returns end with its last step. None:
            all act to the end.

    Returns:
        Targets [T, E, N].
    """
    rewards = rewards.unsqueeze(-1).expand_as(values)
    returns = torch.empty_like(values)
    returns[-1] = rewards[-1]
    for t in range(len(values) - 2, -1, -1):
        bootstrap = (1 - lambda_) * values[t + 1] + lambda_ * returns[t + 1]
        if active is not None:
            bootstrap = bootstrap.where(active[t + 1], 0.0)
        returns[t] = rewards[t] + gamma * bootstrap
    return returns


def counterfactual_advantage(
    values: Tensor, probabilities: Tensor, actions: Tensor, returns: Tensor | None = None
) -> Tensor:
    """Return Q(s, a) - Σ_a' π(a'|o)·Q(s, a'): what the own action added, others held fixed.

    With returns, G - Σ_a' π(a'|o)·Q(s, a'): the baseline is the same, and the value of the action
    comes from the mission flown instead of the critic.

    A baseline adds no bias if it does not depend on the own action. This one does a little: the
    critic sees the actions of all other UAVs (`other_actions`), and those that choose later choose
    from masks that the own action has changed.

    Args:
        values: Q(s, ·) [..., A].
        probabilities: π [..., A].
        actions: taken [...].
        returns: TD(λ) returns G [...] of the actions taken; None = the critic's Q(s, a).
    """
    gained = taken(values, actions) if returns is None else returns
    return gained - (probabilities * values).sum(-1)


def critic_loss(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return the mean squared error of Q(s, a) [B, A] against TD(λ) targets [B].

    For `weights` see `mean_of`.
    """
    return mean_of((taken(values, actions) - targets).square(), weights)


def value_loss(
    values: Tensor,
    targets: Tensor,
    old_values: Tensor,
    clip: float,
    huber_delta: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the mean of max(l(V - G), l(V_old + clip(V - V_old, -c, c) - G)).

    V gains nothing from a distance to V_old of more than c (Schulman et al. 2017, published code;
    Yu et al. 2022, appendix A). l(e) is Huber's loss: e²/2, and δ·(|e| - δ/2) beyond δ.

    Args:
        values: V, [B].
        targets: G, [B].
        old_values: V before the training step, [B].
        clip: c, 0 = l(V - G) alone.
        huber_delta: δ, 0 = the squared error e².
        weights: see `mean_of`, [B].
    """

    def distance(value: Tensor) -> Tensor:
        if huber_delta > 0:
            return huber_loss(value, targets, reduction="none", delta=huber_delta)
        return (value - targets).square()

    loss = distance(values)
    if clip > 0:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, distance(clipped))
    return mean_of(loss, weights)


def actor_loss(
    probabilities: Tensor,
    actions: Tensor,
    advantages: Tensor,
    entropy_coefficient: float,
    old_probabilities: Tensor | None = None,
    clip_ratio: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Return -mean(A·log π(a)) - entropy_coefficient·mean(entropy of π).

    With a clip ratio c > 0 the first term is the clipped surrogate of PPO (Schulman et al.
    2017, equation 7), -mean min(ρ·A, clip(ρ, 1 - c, 1 + c)·A) with ρ = π(a)/π_old(a): repeated
    passes over the same transitions then keep the policy near the one that flew them.

    Args:
        probabilities: π of the acting policy, [B, A].
        actions: taken [B].
        advantages: [B], held constant.
        entropy_coefficient: weight of the entropy bonus.
        old_probabilities: π when the actions were taken, [B, A]; needed for clipping.
        clip_ratio: c, 0 = no clipping.
        weights: see `mean_of`, [B].
    """
    advantages = advantages.detach()
    chosen = taken(probabilities, actions)
    if clip_ratio > 0 and old_probabilities is not None:
        ratio = chosen / taken(old_probabilities, actions)
        clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
        loss = -mean_of(torch.minimum(ratio * advantages, clipped * advantages), weights)
    else:
        loss = -mean_of(advantages * log_probabilities(chosen), weights)
    if entropy_coefficient > 0:
        loss = loss - entropy_coefficient * mean_of(policy_entropy(probabilities), weights)
    return loss


def normalized(advantages: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return advantages [B] with mean 0 and standard deviation 1 over the batches of all ranks.

    For `weights` see `mean_of`; they have the mean 1 over the batches of all ranks.
    """
    centred = advantages - mean_over_ranks(mean_of(advantages, weights))
    return centred / (mean_over_ranks(mean_of(centred.square(), weights)).sqrt() + DEVIATION_FLOOR)
