"""Losses with their gradients in few kernels, for updates on a GPU; see `triton_losses`.

Operators of `torch.library`: the `meta` device, fake tensors and `torch.compile` see what they
return without running them. Tensors lie on one GPU, or on the CPU under Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from marl_framework.algorithms import triton_losses
from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.judging import Losses
from marl_framework.algorithms.losses import normalized
from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.ranks import number_of_ranks
from marl_framework.device import launched_on

BLOCK = 128  # transitions of a program


@torch.library.custom_op("marl_framework::judge_actions", mutates_args=())
def judge_actions(
    logits: Tensor,
    masks: Tensor,
    epsilon: Tensor,
    values: Tensor,
    actions: Tensor,
    returns: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the policy [B, A] and the advantages of the actions taken [B]."""
    probabilities, advantages = torch.empty_like(logits), logits.new_empty(len(logits))
    _launch(
        triton_losses.judge,
        logits,
        masks.view(torch.int8),
        epsilon,
        values,
        actions,
        actions if returns is None else returns,
        probabilities,
        advantages,
        RETURNS=returns is not None,
    )
    return probabilities, advantages


@torch.library.custom_op("marl_framework::actor_gradient", mutates_args=())
def actor_gradient(
    logits: Tensor,
    masks: Tensor,
    epsilon: Tensor,
    actions: Tensor,
    advantages: Tensor,
    old: Tensor,
    weights: Tensor | None,
    entropy_coefficient: float,
    clip_ratio: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the actor's loss by the logits [B, A], and parts of the loss."""
    gradient, parts = torch.empty_like(logits), _parts(logits)
    _launch(
        triton_losses.lose_actor,
        logits,
        masks.view(torch.int8),
        epsilon,
        actions,
        advantages,
        old,
        advantages if weights is None else weights,
        gradient,
        parts,
        WEIGHTS=weights is not None,
        ENTROPY=entropy_coefficient,
        CLIP=clip_ratio,
    )
    return gradient, parts


@torch.library.custom_op("marl_framework::critic_gradient", mutates_args=())
def critic_gradient(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the critic's loss by the values [B, A], and parts of the loss."""
    gradient, parts = torch.empty_like(values), _parts(values)
    _launch(
        triton_losses.lose_critic,
        values,
        actions,
        targets,
        targets if weights is None else weights,
        gradient,
        parts,
        WEIGHTS=weights is not None,
    )
    return gradient, parts


@torch.library.custom_op("marl_framework::decide_descent", mutates_args=())
def decide_descent(
    loss: Tensor, norm: Tensor, halted: Tensor | None, maximum_norm: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what gradients are divided by, 1 to leave the weights as they are, 1 for bad ones."""
    scale, leave, bad = (torch.empty_like(norm) for _ in range(3))
    with launched_on(loss):
        triton_losses.decide[(1,)](
            loss,
            norm,
            loss if halted is None else halted,
            scale,
            leave,
            bad,
            LIMIT=maximum_norm,
            HALTS=halted is not None,
            num_warps=1,
        )
    return scale, leave, bad


@judge_actions.register_fake
def _(logits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(logits), logits.new_empty(len(logits))


@actor_gradient.register_fake
@critic_gradient.register_fake
def _(outputs: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(outputs), _parts(outputs)


@decide_descent.register_fake
def _(loss: Tensor, norm: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(norm), torch.empty_like(norm), torch.empty_like(norm)


def _normalized(advantages: Tensor, weights: Tensor | None = None) -> Tensor:
    """See `losses.normalized`."""
    if number_of_ranks() > 1 or weights is not None:
        return normalized(advantages, weights)
    deviation, mean = torch.std_mean(advantages, correction=0)
    return (advantages - mean) / (deviation + 1e-8)


class TritonLosses(Losses):
    """The same in kernels."""

    decide = staticmethod(decide_descent)
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
        probabilities, advantages = judge_actions(
            logits.detach(), part.masks, self.floor(epsilon), values, part.actions, returns
        )
        return logits, probabilities, advantages

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
        gradient, parts = actor_gradient(
            policy.detach(),
            part.masks,
            self.floor(epsilon),
            part.actions,
            advantages,
            part.old_probabilities,
            part.weights,
            entropy_coefficient,
            clip_ratio,
        )
        return _WithGradient.apply(policy, parts.sum(), gradient)

    def teacher_kl(self, policy: Tensor, part: Transitions, epsilon: float | Tensor) -> Tensor:
        """See `Losses.teacher_kl`; the policy of these losses is its logits."""
        policy = policy_probabilities(policy, part.masks, epsilon)
        return super().teacher_kl(policy, part, epsilon)

    def critic(self, values: Tensor, part: Transitions) -> Tensor:
        """See `Losses.critic`."""
        values = _exact(values)
        gradient, parts = critic_gradient(values.detach(), part.actions, part.targets, part.weights)
        return _WithGradient.apply(values, parts.sum(), gradient)


def _exact(outputs: Tensor) -> Tensor:
    """Return what a network of one's own put out as kernels need it: float32, and contiguous."""
    return outputs.float().contiguous()


class _WithGradient(torch.autograd.Function):
    """A loss whose gradient is known."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * scale, None, None


def _parts(outputs: Tensor) -> Tensor:
    return outputs.new_empty(triton.cdiv(len(outputs), BLOCK))


def _launch(kernel: Any, outputs: Tensor, *arguments: Tensor, **constants: Any) -> None:
    """Launch a kernel for B transitions; `outputs` of a network are [B, A]."""
    if not all(tensor.is_contiguous() for tensor in (outputs, *arguments)):
        raise ValueError("loss kernels need contiguous tensors")
    number, actions = outputs.shape
    with launched_on(outputs):
        kernel[(triton.cdiv(number, BLOCK),)](
            outputs,
            *arguments,
            number,
            A=actions,
            **constants,
            BLOCK_B=BLOCK,
            BLOCK_A=triton.next_power_of_2(actions),
            num_warps=4,
        )
