"""Kernel operators for policies: action sampling, advantages, losses and their gradients.

The plain versions are in `algorithms`, with gradients from autograd; the kernels compute gradients
themselves. There are B transitions with A actions. Tensors are contiguous, and float32 unless noted
otherwise. As `torch.library` operators with fake implementations, they support the `meta` device,
fake tensors and `torch.compile`.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.kernels.versions import block, check_contiguous, launch

TINY = torch.finfo(torch.float32).tiny
"""Smallest normal float32; arguments of logarithms are clamped to it."""
NORM_FLOOR = 1e-6
"""Constant added to the gradient norm before comparison with the maximum."""
BLOCK, MISSIONS = 128, 16
"""Transitions per program of the losses, and missions per program of `choose`."""


class Sizes(NamedTuple):
    """Compile-time constants of the loss kernels."""

    A: int
    BLOCK_A: int
    returns: bool = False
    weights: bool = False
    """Whether the optional tensors `returns` and `weights` are given."""
    entropy: float = 0.0
    clip: float = 0.0
    BLOCK: int = BLOCK


class Choice(NamedTuple):
    """Arguments of `choose_actions`: E missions, N UAVs, a lattice of X × Y × Z positions."""

    logits: Tensor
    """Policy logits, [E, N, A] float32."""
    uniform: Tensor
    """Uniform draws in [0, 1), [E, N, A] float32."""
    epsilon: Tensor
    """Floor of the policy, [] float64."""
    positions: Tensor
    """Lattice indices, [E, N, 3] int64."""
    moves: Tensor
    """`MissionState.moves`, [E, X, Y, Z, A] bool; missions may share one table."""
    active: Tensor
    """Active UAVs, [E, N] bool; inactive UAVs occupy no cell."""
    offsets: Tensor
    """Lattice steps of the actions, [A, 3] int64."""
    actions: Tensor
    """Chosen actions, [E, N] int64, written."""
    masks: Tensor
    """Allowed actions, [E, N, A] bool, written."""
    probabilities: Tensor
    """Probabilities of the policy, [E, N, A] float32, written."""


ChoiceSizes = namedtuple("ChoiceSizes", "Y Z N A BLOCK_N BLOCK_A")
"""Compile-time constants of `choose`."""


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
    """Sample the UAVs' actions in order, each under its mask; for arguments see `Choice`."""
    given = logits, uniform, epsilon, positions, moves, active, offsets
    choice = Choice(*given, actions, masks, probabilities)
    check_contiguous(*choice._replace(moves=moves[0]))
    e, n, a = logits.shape
    y, z = moves.shape[2:4]
    sizes = ChoiceSizes(y, z, n, a, block(n), block(a))
    programs = (-(-e // MISSIONS),)
    launch("policies.choose", programs, choice, moves.stride(0), e, S=sizes, num_warps=1)


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
        logits: logits of the actor, [B, A].
        masks: allowed actions, [B, A] bool.
        epsilon: floor of the policy, [] float64.
        values: Q(s, ·), [B, A].
        actions: actions taken, [B] int64.
        returns: returns of the actions taken, [B]; None = use their values Q(s, a).
    """
    probabilities, advantages = torch.empty_like(logits), logits.new_empty(len(logits))
    credit = actions if returns is None else returns  # a placeholder if there are no returns
    inputs = logits, masks, epsilon, values, actions, credit, probabilities, advantages
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
    """Return the gradient of the actor's loss by the logits [B, A], and terms of the loss.

    The first four arguments are as in `policy_advantages`; `advantages` [B] are its result. `old`
    is the policy when the actions were taken, [B, A]. `weights` are the transitions' weights, [B]
    (None = equal weights). A `clip_ratio` of 0 disables clipping. The terms sum to the loss.
    """
    gradient, terms = torch.empty_like(logits), _empty_terms(logits)
    given = advantages if weights is None else weights
    inputs = logits, masks, epsilon, actions, advantages, old, given, gradient, terms
    constants = {"entropy": entropy_coefficient, "clip": clip_ratio}
    _launch("actor_loss", inputs, weights=weights is not None, **constants)
    return gradient, terms


@torch.library.custom_op("marl_framework::critic_gradient", mutates_args=())
def critic_gradient(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the critic's loss by the values [B, A], and terms of the loss.

    `targets` are [B]; the other arguments are as in `policy_advantages` and `actor_gradient`.
    """
    gradient, terms = torch.empty_like(values), _empty_terms(values)
    given = targets if weights is None else weights
    inputs = values, actions, targets, given, gradient, terms
    _launch("critic_loss", inputs, weights=weights is not None)
    return gradient, terms


@torch.library.custom_op("marl_framework::descent_rule", mutates_args=())
def descent_rule(
    loss: Tensor, norm: Tensor, halted: Tensor | None, maximum_norm: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients' divisor, 1 to skip the step, and 1 if loss or norm is not finite.

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
    return torch.empty_like(outputs), _empty_terms(outputs)


@descent_rule.register_fake
def _(loss: Tensor, norm: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(norm), torch.empty_like(norm), torch.empty_like(norm)


def _empty_terms(outputs: Tensor) -> Tensor:
    return outputs.new_empty(-(-len(outputs) // BLOCK))


def _launch(name: str, tensors: tuple[Tensor, ...], **flags: Any) -> None:
    """Launch a kernel for B transitions; the first tensor is a network's output [B, A]."""
    check_contiguous(*tensors)
    number, actions = tensors[0].shape
    sizes, programs = Sizes(actions, block(actions), **flags), (-(-number // BLOCK),)
    warps = 4 if sizes.BLOCK_A <= 16 else 8  # with fewer, 27 actions spill
    launch(f"policies.{name}", programs, *tensors, number, S=sizes, num_warps=warps)
