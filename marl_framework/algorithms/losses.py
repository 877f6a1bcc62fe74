"""Targets, advantages and losses: of COMA (Foerster et al. 2018, equations 3–5) and of PPO."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.optimisers import decide
from marl_framework.algorithms.policy import (
    Floor,
    log_probabilities,
    policy_entropy,
    policy_probabilities,
)
from marl_framework.algorithms.ranks import mean_of
from marl_framework.kernels import policies as kernels


def taken(values: Tensor, actions: Tensor) -> Tensor:
    """Return the values [..., A] of the actions taken [...]."""
    return values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def td_lambda_returns(
    rewards: Tensor,
    values: Tensor,
    gamma: float,
    lambda_: float,
    active: Tensor | None = None,
) -> Tensor:
    """Return G_t = r_t + γ·[(1 - λ)·Q̄_{t+1} + λ·G_{t+1}] of whole episodes, [T, E, N].

    λ = 0 gives TD(0) targets, λ = 1 discounted sums (Sutton & Barto 2018, section 12.3).

    Args:
        rewards: rewards of the team, [T, E].
        values: Q̄(s_t, a_t) of the action taken, or V(s_t) of a critic of states, [T, E, N].
        gamma: discount.
        lambda_: trace decay.
        active: agents that act, [T, E, N] bool; an agent's returns end with its last step.
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
    """Return Q(s, a) - Σ_a' π(a'|o)·Q(s, a'), or G - Σ_a' π(a'|o)·Q(s, a') with returns G.

    The baseline adds a small bias: UAVs that choose later, whose actions the critic sees, choose
    from masks that the own action has changed.

    Values Q(s, ·) and probabilities π are [..., A], actions a and returns G [...].
    """
    gained = taken(values, actions) if returns is None else returns
    return gained - (probabilities * values).sum(-1)


def critic_loss(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return the mean squared error of Q(s, a) [B, A] against targets [B]; see `mean_of`."""
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

    See Schulman et al. 2017, published code; Yu et al. 2022, appendix A. l(e) is Huber's loss:
    e²/2, and δ·(|e| - δ/2) beyond δ.

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
    2017, equation 7), -mean min(ρ·A, clip(ρ, 1 - c, 1 + c)·A) with ρ = π(a)/π_old(a).

    Args:
        probabilities: π of the acting policy, [B, A].
        actions: actions taken, [B].
        advantages: their advantages, [B], held constant.
        entropy_coefficient: weight of the entropy bonus.
        old_probabilities: π when the actions were taken, [B, A]; needed for clipping.
        clip_ratio: c, 0 = no clipping.
        weights: see `mean_of`, [B].
    """
    advantages = advantages.detach()
    chosen = taken(probabilities, actions)
    if clip_ratio > 0:
        assert old_probabilities is not None
        ratio = chosen / taken(old_probabilities, actions)
        clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
        loss = -mean_of(torch.minimum(ratio * advantages, clipped * advantages), weights)
    else:
        loss = -mean_of(advantages * log_probabilities(chosen), weights)
    if entropy_coefficient > 0:
        loss = loss - entropy_coefficient * mean_of(policy_entropy(probabilities), weights)
    return loss


class Losses:
    """Policies, advantages and losses of an update, by plain operators."""

    decide = staticmethod(decide)
    fused = False
    """Whether to compute moments of advantages together; see `ranks.normalized`."""

    def floor(self, epsilon: Floor) -> Floor:
        """Return the floor of the policy as an argument of the other methods."""
        return epsilon

    def judge(
        self, logits: Tensor, part: Transitions, values: Tensor, floor: Floor, credit: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return policy, π [B, A] and `counterfactual_advantage` [B] of the actions taken.

        The policy is an argument of the other methods; it alone has a gradient. Logits and values
        Q(s, ·) are [B, A], the credit (`returns` of an advantage) is [B] or None.
        """
        policy = policy_probabilities(logits, part.masks, floor)
        pi = policy.detach()
        return policy, pi, counterfactual_advantage(values, pi, part.actions, credit)

    def actor(
        self, policy: Tensor, part: Transitions, advantages: Tensor, epsilon: Floor, *options: float
    ) -> Tensor:
        """Return `actor_loss` of transitions with policy and advantages from `judge`.

        The options are entropy coefficient and clip ratio.
        """
        entropy, clip = options
        flown = part.old_probabilities, clip, part.weights
        return actor_loss(policy, part.actions, advantages, entropy, *flown)

    def probabilities(self, policy: Tensor, part: Transitions, floor: Floor) -> Tensor:
        """Return π [B, A] of a policy from `judge`, with gradient."""
        return policy

    def critic(self, values: Tensor, part: Transitions) -> Tensor:
        """Return `critic_loss` of transitions with values [B, A]."""
        return critic_loss(values, part.actions, part.targets, part.weights)


class TritonLosses(Losses):
    """Policies, advantages and losses by `kernels.policies`; their policy is its logits."""

    decide = staticmethod(kernels.descent_rule)
    fused = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def floor(self, epsilon: Floor) -> Tensor:
        """See `Losses.floor`."""
        if isinstance(epsilon, Tensor):
            return epsilon
        return torch.full((), epsilon, dtype=torch.float64, device=self._device)

    def judge(
        self, logits: Tensor, part: Transitions, values: Tensor, floor: Floor, credit: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Losses.judge`."""
        logits, values = _exact(logits), _exact(values)
        policy = logits.detach(), part.masks, self.floor(floor)
        return logits, *kernels.policy_advantages(*policy, values, part.actions, credit)

    def actor(
        self, policy: Tensor, part: Transitions, advantages: Tensor, epsilon: Floor, *options: float
    ) -> Tensor:
        """See `Losses.actor`."""
        logits = policy.detach(), part.masks, self.floor(epsilon)
        flown = part.actions, advantages, part.old_probabilities, part.weights
        gradient, parts = kernels.actor_gradient(*logits, *flown, *options)
        return _WithGradient.apply(policy, parts.sum(), gradient)

    def probabilities(self, policy: Tensor, part: Transitions, floor: Floor) -> Tensor:
        """See `Losses.probabilities`."""
        return policy_probabilities(policy, part.masks, floor)

    def critic(self, values: Tensor, part: Transitions) -> Tensor:
        """See `Losses.critic`."""
        values = _exact(values)
        wanted = part.actions, part.targets, part.weights
        gradient, parts = kernels.critic_gradient(values.detach(), *wanted)
        return _WithGradient.apply(values, parts.sum(), gradient)


def _exact(outputs: Tensor) -> Tensor:
    return outputs.float().contiguous()  # as kernels need them


class _WithGradient(torch.autograd.Function):
    """A loss with a known gradient."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * scale, None, None
