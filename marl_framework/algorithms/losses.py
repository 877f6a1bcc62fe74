"""Targets, advantages and losses of COMA (Foerster et al. 2018, equations 3–5) and PPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.optimisers import step_rule
from marl_framework.algorithms.policy import (
    Floor,
    log_probabilities,
    policy_entropy,
    policy_probabilities,
)
from marl_framework.algorithms.ranks import mean_of
from marl_framework.kernels import policies as kernels


def select_taken(values: Tensor, actions: Tensor) -> Tensor:
    """Return the entries [...] of `values` [..., A] for the actions taken [...]."""
    return values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def td_lambda_returns(
    rewards: Tensor,
    values: Tensor,
    gamma: float,
    lambda_: float,
    active: Tensor | None = None,
) -> Tensor:
    """Return G_t = r_t + γ·[(1 - λ)·Q̄_{t+1} + λ·G_{t+1}] for whole episodes, [T, E, N].

    λ = 0 gives TD(0) targets; λ = 1 gives discounted sums (Sutton & Barto 2018, section 12.3).

    Args:
        rewards: team rewards, [T, E].
        values: target-network Q̄(s_t, a_t), or V(s_t) of a state-value critic, [T, E, N].
        gamma: discount factor γ.
        lambda_: trace decay λ.
        active: active agents, [T, E, N] bool; an agent's returns end with its last step.
    """

    def bootstrap(t: int, after: Tensor) -> Tensor:
        return (1 - lambda_) * values[t] + lambda_ * after

    return _returns(rewards, values, gamma, bootstrap, active)


def retrace_returns(
    rewards: Tensor,
    values: Tensor,
    taken: Tensor,
    traces: Tensor,
    gamma: float,
    active: Tensor | None = None,
) -> Tensor:
    """Return G_t = r_t + γ·[V_{t+1} + c_{t+1}·(G_{t+1} - Q_{t+1})] for whole episodes, [T, E, N].

    c = λ·min(1, π(a)/μ(a)) gives Retrace(λ) (Munos et al. 2016); c = 0 gives one-step targets.

    Args:
        rewards: team rewards, [T, E].
        values: values V(s_t) under the current policy, [T, E, N].
        taken: values Q(s_t, a_t) of the actions taken, [T, E, N].
        traces: trace coefficients c_t, [T, E, N].
        gamma: discount factor γ.
        active: active agents, [T, E, N] bool; an agent's returns end with its last step.
    """

    def bootstrap(t: int, after: Tensor) -> Tensor:
        return values[t] + traces[t] * (after - taken[t])

    return _returns(rewards, values, gamma, bootstrap, active)


def _returns(
    rewards: Tensor,
    like: Tensor,
    gamma: float,
    bootstrap: Callable[[int, Tensor], Tensor],
    active: Tensor | None,
) -> Tensor:
    """Return G_t = r_t + γ·`bootstrap(t + 1, G_{t+1})` of the shape of `like`, [T, E, N]."""
    rewards = rewards.unsqueeze(-1).expand_as(like)
    returns = torch.empty_like(like)
    returns[-1] = rewards[-1]
    for t in range(len(like) - 2, -1, -1):
        value = bootstrap(t + 1, returns[t + 1])
        if active is not None:
            value = value.where(active[t + 1], 0.0)
        returns[t] = rewards[t] + gamma * value
    return returns


def counterfactual_advantage(
    values: Tensor, probabilities: Tensor, actions: Tensor, returns: Tensor | None = None
) -> Tensor:
    """Return Q(s, a) - Σ_a' π(a'|o)·Q(s, a'); if returns G are given, they replace Q(s, a).

    The baseline is slightly biased: an agent's action changes the masks of agents that choose
    after it, and the critic sees their actions.

    Values Q(s, ·) and probabilities π are [..., A]; actions a and returns G are [...].
    """
    credit = select_taken(values, actions) if returns is None else returns
    return credit - (probabilities * values).sum(-1)


def critic_loss(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return the squared error of Q(s, a) [B, A] to targets [B], averaged as in `mean_of`."""
    return mean_of((select_taken(values, actions) - targets).square(), weights)


def value_loss(
    values: Tensor,
    targets: Tensor,
    old_values: Tensor,
    clip: float,
    huber_delta: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the mean of max(l(V - G), l(V_old + clip(V - V_old, -c, c) - G)).

    See the code published with Schulman et al. (2017), and Yu et al. 2022, appendix A. l(e) is the
    Huber loss: e²/2, and δ·(|e| - δ/2) for |e| > δ.

    Args:
        values: V, [B].
        targets: G, [B].
        old_values: V_old, before the training step, [B].
        clip: clip range c; 0 disables clipping.
        huber_delta: δ; 0 selects the squared error e².
        weights: weights as in `mean_of`, [B].
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
        probabilities: π, differentiable, [B, A].
        actions: actions taken, [B].
        advantages: advantages of these actions, treated as constants, [B].
        entropy_coefficient: weight of the entropy bonus.
        old_probabilities: π when the actions were taken, [B, A]; required for clipping.
        clip_ratio: c; 0 disables clipping.
        weights: weights as in `mean_of`, [B].
    """
    advantages = advantages.detach()
    chosen = select_taken(probabilities, actions)
    if clip_ratio > 0:
        assert old_probabilities is not None
        ratio = chosen / select_taken(old_probabilities, actions)
        clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
        loss = -mean_of(torch.minimum(ratio * advantages, clipped * advantages), weights)
    else:
        loss = -mean_of(advantages * log_probabilities(chosen), weights)
    if entropy_coefficient > 0:
        loss = loss - entropy_coefficient * mean_of(policy_entropy(probabilities), weights)
    return loss


class Losses:
    """Policies, advantages and losses of an update, computed with plain PyTorch operators."""

    step_rule = staticmethod(step_rule)
    fused = False
    """Whether one kernel computes both mean and standard deviation of the advantages."""

    def convert_epsilon(self, epsilon: Floor) -> Floor:
        """Convert ε to the form that the other methods expect."""
        return epsilon

    def compute_advantages(
        self, logits: Tensor, batch: Transitions, q: Tensor, epsilon: Floor, credit: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits for the other methods, the detached π [B, A] and the advantages [B].

        Logits and `q`, Q(s, ·), are [B, A]. The credit, [B] or None, is passed as `returns` to
        `counterfactual_advantage`.
        """
        pi = policy_probabilities(logits.detach(), batch.masks, epsilon)
        return logits, pi, counterfactual_advantage(q, pi, batch.actions, credit)

    def actor_loss(
        self,
        logits: Tensor,
        batch: Transitions,
        advantages: Tensor,
        epsilon: Floor,
        entropy: float,
        clip: float,
    ) -> Tensor:
        """Return `actor_loss` with an entropy coefficient and a clip ratio (0 disables it)."""
        pi, old = policy_probabilities(logits, batch.masks, epsilon), batch.old_probabilities
        return actor_loss(pi, batch.actions, advantages, entropy, old, clip, batch.weights)

    def critic_loss(self, values: Tensor, batch: Transitions) -> Tensor:
        """Return `critic_loss` for values [B, A]."""
        return critic_loss(values, batch.actions, batch.targets, batch.weights)


class TritonLosses(Losses):
    """Losses computed by Triton kernels (`kernels.policies`)."""

    step_rule = staticmethod(kernels.descent_rule)
    fused = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def convert_epsilon(self, epsilon: Floor) -> Tensor:
        """See `Losses.convert_epsilon`."""
        if isinstance(epsilon, Tensor):
            return epsilon
        return torch.full((), epsilon, dtype=torch.float64, device=self._device)

    def compute_advantages(
        self, logits: Tensor, batch: Transitions, q: Tensor, epsilon: Floor, credit: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Losses.compute_advantages`."""
        logits, q = _as_float32(logits), _as_float32(q)
        policy = logits.detach(), batch.masks, self.convert_epsilon(epsilon)
        return logits, *kernels.policy_advantages(*policy, q, batch.actions, credit)

    def actor_loss(
        self,
        logits: Tensor,
        batch: Transitions,
        advantages: Tensor,
        epsilon: Floor,
        entropy: float,
        clip: float,
    ) -> Tensor:
        """See `Losses.actor_loss`."""
        policy = logits.detach(), batch.masks, self.convert_epsilon(epsilon)
        old, weights = batch.old_probabilities, batch.weights
        gradient, terms = kernels.actor_gradient(
            *policy, batch.actions, advantages, old, weights, entropy, clip
        )
        return _WithGradient.apply(logits, terms.sum(), gradient)

    def critic_loss(self, values: Tensor, batch: Transitions) -> Tensor:
        """See `Losses.critic_loss`."""
        values, targets, weights = _as_float32(values), batch.targets, batch.weights
        gradient, terms = kernels.critic_gradient(values.detach(), batch.actions, targets, weights)
        return _WithGradient.apply(values, terms.sum(), gradient)


def _as_float32(outputs: Tensor) -> Tensor:
    return outputs.float().contiguous()  # kernels require contiguous float32


class _WithGradient(torch.autograd.Function):
    """Loss whose gradient by `outputs` is known."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * scale, None, None
