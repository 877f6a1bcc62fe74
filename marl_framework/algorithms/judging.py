"""Policies, advantages and losses of an update, in plain operators or in Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import (
    DEVIATION_FLOOR,
    actor_loss,
    counterfactual_advantage,
    critic_loss,
    mean_of,
    normalized,
)
from marl_framework.algorithms.optimisers import decide
from marl_framework.algorithms.policy import kl_divergence, policy_probabilities
from marl_framework.algorithms.ranks import number_of_ranks
from marl_framework.kernels.policies import (
    actor_gradient,
    critic_gradient,
    descent_rule,
    policy_advantages,
)


class Losses:
    """Plain operators."""

    decide = staticmethod(decide)
    """See `optimisers.DescentRule`."""
    normalized = staticmethod(normalized)

    def floor(self, epsilon: float | Tensor) -> float | Tensor:
        """Return the floor of the policy as an argument of the other methods."""
        return epsilon

    def judge(
        self,
        logits: Tensor,
        part: Transitions,
        values: Tensor,
        epsilon: float | Tensor,
        returns: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the policy, and the advantages of the actions taken.

        Args:
            logits: of the actor, [B, A], with gradient.
            part: the transitions.
            values: Q(s, ·), [B, A].
            epsilon: from `floor`.
            returns: see `losses.counterfactual_advantage`, [B] or None.

        Returns:
            The policy as an argument of the other methods, with gradient; π [B, A] and advantages
            [B], without.
        """
        policy = policy_probabilities(logits, part.masks, epsilon)
        probabilities = policy.detach()
        advantages = counterfactual_advantage(values, probabilities, part.actions, returns)
        return policy, probabilities, advantages

    def actor(
        self,
        policy: Tensor,
        part: Transitions,
        advantages: Tensor,
        epsilon: float | Tensor,
        entropy_coefficient: float,
        clip_ratio: float,
    ) -> Tensor:
        """Return `losses.actor_loss` of transitions.

        Args:
            policy: from `judge`, [B, A].
            part: the transitions.
            advantages: of the actions taken, [B], normalised or from `judge`.
            epsilon: from `floor`.
            entropy_coefficient: weight of the entropy bonus.
            clip_ratio: of the clipped surrogate, 0 = no clipping.
        """
        return actor_loss(
            policy,
            part.actions,
            advantages,
            entropy_coefficient,
            part.old_probabilities,
            clip_ratio,
            part.weights,
        )

    def teacher_kl(self, policy: Tensor, part: Transitions, epsilon: float | Tensor) -> Tensor:
        """Return the mean KL(teacher ‖ policy) of transitions with a policy from `judge` [nat]."""
        assert part.teacher is not None
        return mean_of(kl_divergence(part.teacher, policy), part.weights)

    def critic(self, values: Tensor, part: Transitions) -> Tensor:
        """Return `losses.critic_loss` of transitions with values [B, A]."""
        return critic_loss(values, part.actions, part.targets, part.weights)


def _normalized(advantages: Tensor, weights: Tensor | None = None) -> Tensor:
    """See `losses.normalized`; in fewer kernels on one rank."""
    if number_of_ranks() > 1 or weights is not None:
        return normalized(advantages, weights)
    deviation, mean = torch.std_mean(advantages, correction=0)
    return (advantages - mean) / (deviation + DEVIATION_FLOOR)


class TritonLosses(Losses):
    """The kernels of `kernels.policies`; their policy is its logits."""

    decide = staticmethod(descent_rule)
    normalized = staticmethod(_normalized)

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def floor(self, epsilon: float | Tensor) -> Tensor:
        """See `Losses.floor`."""
        if isinstance(epsilon, Tensor):
            return epsilon
        return torch.full((), epsilon, dtype=torch.float64, device=self._device)

    def judge(
        self,
        logits: Tensor,
        part: Transitions,
        values: Tensor,
        epsilon: float | Tensor,
        returns: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Losses.judge`."""
        logits, values = _exact(logits), _exact(values)
        policy = logits.detach(), part.masks, self.floor(epsilon)
        return logits, *policy_advantages(*policy, values, part.actions, returns)

    def actor(
        self,
        policy: Tensor,
        part: Transitions,
        advantages: Tensor,
        epsilon: float | Tensor,
        entropy_coefficient: float,
        clip_ratio: float,
    ) -> Tensor:
        """See `Losses.actor`."""
        taken = part.actions, advantages, part.old_probabilities, part.weights
        gradient, parts = actor_gradient(
            policy.detach(),
            part.masks,
            self.floor(epsilon),
            *taken,
            entropy_coefficient,
            clip_ratio,
        )
        return _WithGradient.apply(policy, parts.sum(), gradient)

    def teacher_kl(self, policy: Tensor, part: Transitions, epsilon: float | Tensor) -> Tensor:
        """See `Losses.teacher_kl`."""
        policy = policy_probabilities(policy, part.masks, epsilon)
        return super().teacher_kl(policy, part, epsilon)

    def critic(self, values: Tensor, part: Transitions) -> Tensor:
        """See `Losses.critic`."""
        values = _exact(values)
        gradient, parts = critic_gradient(values.detach(), part.actions, part.targets, part.weights)
        return _WithGradient.apply(values, parts.sum(), gradient)


def _exact(outputs: Tensor) -> Tensor:
    """Return outputs of any network as kernels need them: float32, and contiguous."""
    return outputs.float().contiguous()


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
