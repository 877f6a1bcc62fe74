"""Contract of policies: choices of actions, advantages, losses and their gradients.

The plain versions are those of `algorithms`; autograd finds their gradients, which the kernels
write themselves. B transitions with A actions. Tensors are contiguous, and float32 unless said
otherwise. The `meta` device, fake tensors and `torch.compile` see the results of these operators of
`torch.library` without running them.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.kernels.versions import Kernel, block, check_contiguous, launch

KERNELS = {
    "choose_actions": Kernel("algorithms.rollout.draw_one_by_one", triton="choose"),
    "policy_advantages": Kernel(
        "algorithms.losses.counterfactual_advantage", triton="advantages policy"
    ),
    "actor_gradient": Kernel("algorithms.losses.actor_loss", triton="actor_loss"),
    "critic_gradient": Kernel("algorithms.losses.critic_loss", triton="critic_loss"),
    "descent_rule": Kernel("algorithms.optimisers.step_rule", triton="descent_rule"),
}
TINY = torch.finfo(torch.float32).tiny
"""Smallest normal float32: the least argument of logarithms."""
NORM_FLOOR = 1e-6
"""Added to the gradient norm before it is compared with the maximum."""
BLOCK, MISSIONS = 128, 16
"""Transitions of a program, and missions of one that chooses actions."""


class Sizes(NamedTuple):
    """Constants that kernels are compiled for."""

    A: int
    BLOCK_A: int
    returns: bool = False
    weights: bool = False
    """Whether the optional tensors are given."""
    entropy: float = 0.0
    clip: float = 0.0
    BLOCK: int = BLOCK


class Choice(NamedTuple):
    """Arguments of E missions of N UAVs on a lattice of X × Y × Z."""

    logits: Tensor
    """[E, N, A] float32."""
    uniform: Tensor
    """Draws in [0, 1), [E, N, A] float32."""
    epsilon: Tensor
    """Floor of the policy, [] float64."""
    positions: Tensor
    """Lattice indices, [E, N, 3] int64."""
    moves: Tensor
    """See `MissionState.moves`, [E, X, Y, Z, A] bool; missions may share one table."""
    active: Tensor
    """UAVs that fly, [E, N] bool; the others take no cell."""
    offsets: Tensor
    """Steps of the actions, [A, 3] int64."""
    actions: Tensor
    """[E, N] int64, written."""
    masks: Tensor
    """Allowed actions, [E, N, A] bool, written."""
    probabilities: Tensor
    """Policy, [E, N, A] float32, written."""


ChoiceSizes = namedtuple("ChoiceSizes", "Y Z N A BLOCK_N BLOCK_A")
"""Constants that `choose` is compiled for."""


@torch.library.custom_op(
    "marl_framework::choose_actions", mutates_args=("actions", "masks", "probabilities")
)
def choose_actions(
    logits: Tensor,
    uniform: Tensor,
    epsilon: Tensor,
    positions: Tensor,
    moves: Tensor,
    active: Tensor,
    offsets: Tensor,
    actions: Tensor,
    masks: Tensor,
    probabilities: Tensor,
) -> None:
    """Draw the UAVs' actions one after the other, each under its mask; see `Choice`."""
    given = logits, uniform, epsilon, positions, moves, active, offsets
    choice = Choice(*given, actions, masks, probabilities)
    check_contiguous(*choice._replace(moves=moves[0]))
    e, n, a = logits.shape
    y, z = moves.shape[2:4]
    sizes = ChoiceSizes(y, z, n, a, block(n), block(a))
    programs = (-(-e // MISSIONS),)
    launch("policies.choose", programs, choice, moves.stride(0), e, S=sizes, num_warps=1)


@choose_actions.register_fake
def _(*arguments: Any) -> None:
    """Only the mutated arguments come out."""


@torch.library.custom_op("marl_framework::policy_advantages", mutates_args=())
def policy_advantages(
    logits: Tensor,
    masks: Tensor,
    epsilon: Tensor,
    values: Tensor,
    actions: Tensor,
    returns: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the policy [B, A] and the advantages of the actions taken [B].

    Args:
        logits: of the actor, [B, A].
        masks: allowed actions, [B, A] bool.
        epsilon: floor of the policy, [] float64.
        values: Q(s, ·), [B, A].
        actions: taken, [B] int64.
        returns: of the actions taken, [B]; None = their values.
    """
    probabilities, advantages = torch.empty_like(logits), logits.new_empty(len(logits))
    given = actions if returns is None else returns
    inputs = logits, masks, epsilon, values, actions, given, probabilities, advantages
    _launch("advantages", inputs, returns=returns is not None)
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
    """Return the gradient of the actor's loss by the logits [B, A], and parts of the loss.

    The first four arguments are those of `policy_advantages`, `advantages` [B] its result. `old` is
    the policy when the actions were taken, [B, A], `weights` are those of transitions, [B] (None =
    all the same). A `clip_ratio` of 0 clips nothing.
    """
    gradient, parts = torch.empty_like(logits), _parts(logits)
    counts = advantages if weights is None else weights
    inputs = logits, masks, epsilon, actions, advantages, old, counts, gradient, parts
    constants = {"entropy": entropy_coefficient, "clip": clip_ratio}
    _launch("actor_loss", inputs, weights=weights is not None, **constants)
    return gradient, parts


@torch.library.custom_op("marl_framework::critic_gradient", mutates_args=())
def critic_gradient(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the critic's loss by the values [B, A], and parts of the loss.

    `targets` are [B]; the other arguments are those of `policy_advantages` and `actor_gradient`.
    """
    gradient, parts = torch.empty_like(values), _parts(values)
    counts = targets if weights is None else weights
    inputs = values, actions, targets, counts, gradient, parts
    _launch("critic_loss", inputs, weights=weights is not None)
    return gradient, parts


@torch.library.custom_op("marl_framework::descent_rule", mutates_args=())
def descent_rule(
    loss: Tensor, norm: Tensor, halted: Tensor | None, maximum_norm: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the divisor of gradients, 1 to skip the step else 0, and 1 if numbers are bad else 0.

    All are scalars. The step is also skipped if `halted` is given and above 0.
    """
    scale, skip, bad = (torch.empty_like(norm) for _ in range(3))
    given = loss if halted is None else halted
    flags = {"LIMIT": maximum_norm, "HALTS": halted is not None}
    launch("policies.descent_rule", (1,), loss, norm, given, scale, skip, bad, **flags, num_warps=1)
    return scale, skip, bad


@policy_advantages.register_fake
def _(logits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(logits), logits.new_empty(len(logits))


@actor_gradient.register_fake
@critic_gradient.register_fake
def _(outputs: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(outputs), _parts(outputs)


@descent_rule.register_fake
def _(loss: Tensor, norm: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(norm), torch.empty_like(norm), torch.empty_like(norm)


def _parts(outputs: Tensor) -> Tensor:
    return outputs.new_empty(-(-len(outputs) // BLOCK))


def _launch(name: str, tensors: tuple[Tensor, ...], **flags: Any) -> None:
    """Launch a kernel for B transitions; the first tensor, of a network, is [B, A]."""
    check_contiguous(*tensors)
    number, actions = tensors[0].shape
    sizes, programs = Sizes(actions, block(actions), **flags), (-(-number // BLOCK),)
    launch(f"policies.{name}", programs, *tensors, number, S=sizes, num_warps=4)
