"""What an update computes beside the networks, for any device."""

from __future__ import annotations

from torch import Tensor

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import (
    actor_loss,
    counterfactual_advantage,
    critic_loss,
    mean_of,
    normalized,
)
from marl_framework.algorithms.optimisers import decide
from marl_framework.algorithms.policy import kl_divergence, policy_probabilities


class Losses:
    """Advantages and losses in plain operators."""

    decide = staticmethod(decide)
    """What an optimiser step does, see `optimisers.DescentRule`."""
    normalized = staticmethod(normalized)

    def floor(self, epsilon: float | Tensor) -> float | Tensor:
        """Return the floor of the policy as the other methods take it."""
        return epsilon

    def judge(
        self,
        logits: Tensor,
        part: Transitions,
        values: Tensor,
        epsilon: float | Tensor,
        returns: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Judge the actions that were taken.

        Args:
            logits: of the actor, [B, A], with gradient.
            part: the transitions.
            values: Q(s, ·), [B, A].
            epsilon: from `floor`.
            returns: see `losses.counterfactual_advantage`, [B] or None.

        Returns:
            What `actor` takes as policy, with gradient; π [B, A] and advantages [B], without.
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
            advantages: of the actions taken, [B], normalised or as `judge` has them.
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
