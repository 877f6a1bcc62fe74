"""Policies, losses and their gradients in Triton; see `losses`.

One program serves BLOCK_B of B transitions with A actions. Booleans come as int8. There are no
atomic sums: each program leaves a part of the loss.
"""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.kernels.losses import NORM_FLOOR, TINY

_TINY, _NORM_FLOOR = tl.constexpr(TINY), tl.constexpr(NORM_FLOOR)


@triton.jit
def _log(p):
    """Logarithm that is finite everywhere."""
    return tl.log(tl.maximum(p, _TINY))


@triton.jit
def policy(logits, allowed, epsilon, at, inside):
    """Return the policy, the softmax in it, and the softmax' share of it."""
    logit = tl.where(allowed, tl.load(logits + at, mask=inside, other=0.0), -float("inf"))
    power = tl.exp(logit - tl.max(logit, 1)[:, None])
    softmax = power / tl.sum(power, 1)[:, None]
    number = tl.sum(allowed.to(tl.int32), 1)[:, None].to(tl.float32)
    floor = tl.load(epsilon)
    share = (1 - floor).to(tl.float32)
    uniform = tl.where(allowed, 1.0 / number, 0.0)
    return share * softmax + floor.to(tl.float32) * uniform, softmax, share


@triton.jit
def _allowed(masks, at, inside):
    """Return allowed actions; all beyond the last transition, so that no row divides by 0."""
    allowed = tl.load(masks + at, mask=inside, other=0) != 0
    return allowed | (tl.max(allowed.to(tl.int32), 1) == 0)[:, None]


@triton.jit
def advantages(
    logits,
    masks,
    epsilon,
    values,
    actions,
    returns,
    probabilities,
    taken,
    B,
    A: tl.constexpr,
    RETURNS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """See `losses.policy_advantages`; `taken` are the advantages, written."""
    rows, a = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_A)
    known = rows < B
    at = rows[:, None] * A + a[None, :]
    inside = known[:, None] & (a < A)[None, :]
    p, _, _ = policy(logits, _allowed(masks, at, inside), epsilon, at, inside)
    value = tl.load(values + at, mask=inside, other=0.0)
    if RETURNS:
        gained = tl.load(returns + rows, mask=known, other=0.0)
    else:
        gained = tl.load(
            values + rows * A + tl.load(actions + rows, mask=known, other=0), mask=known, other=0.0
        )
    tl.store(probabilities + at, p, mask=inside)
    tl.store(taken + rows, gained - tl.sum(p * value, 1), mask=known)


@triton.jit
def actor_loss(
    logits,
    masks,
    epsilon,
    actions,
    advantages,
    old,
    weights,
    gradient,
    parts,
    B,
    A: tl.constexpr,
    WEIGHTS: tl.constexpr,
    ENTROPY: tl.constexpr,
    CLIP: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """See `losses.actor_gradient`; one of `parts` for each program."""
    rows, a = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_A)
    known = rows < B
    at = rows[:, None] * A + a[None, :]
    inside = known[:, None] & (a < A)[None, :]
    p, softmax, share = policy(logits, _allowed(masks, at, inside), epsilon, at, inside)
    action = tl.load(actions + rows, mask=known, other=0)
    taken = a[None, :] == action[:, None]
    advantage = tl.load(advantages + rows, mask=known, other=0.0)
    chosen = tl.sum(tl.where(taken, p, 0.0), 1)
    if CLIP > 0:
        before = tl.load(old + rows * A + action, mask=known, other=1.0)
        ratio = chosen / before
        clipped = tl.minimum(tl.maximum(ratio, 1 - CLIP), 1 + CLIP)
        loss = -tl.minimum(ratio * advantage, clipped * advantage)
        slope = -tl.where(ratio * advantage <= clipped * advantage, advantage, 0.0) / before
    else:
        loss = -advantage * _log(chosen)
        slope = -tl.where(chosen >= _TINY, advantage / tl.maximum(chosen, _TINY), 0.0)
    slopes = tl.where(taken, slope[:, None], 0.0)
    if ENTROPY > 0:
        loss += ENTROPY * tl.sum(p * _log(p), 1)
        slopes += ENTROPY * _log(p)  # up to a constant, which the softmax takes out
    if WEIGHTS:
        counts = tl.load(weights + rows, mask=known, other=0.0)
        loss *= counts
        counted = (counts != 0)[:, None]  # a slope may be infinite, and that times 0 no number
        slopes = tl.where(counted, slopes * counts[:, None], 0.0)
    mean = tl.sum(slopes * softmax, 1)[:, None]
    tl.store(gradient + at, share * softmax * (slopes - mean) / B, mask=inside)
    tl.store(parts + tl.program_id(0), tl.sum(tl.where(known, loss, 0.0), 0) / B)


@triton.jit
def critic_loss(
    values,
    actions,
    targets,
    weights,
    gradient,
    parts,
    B,
    A: tl.constexpr,
    WEIGHTS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """See `losses.critic_gradient`; one of `parts` for each program."""
    rows, a = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_A)
    known = rows < B
    action = tl.load(actions + rows, mask=known, other=0)
    value = tl.load(values + rows * A + action, mask=known, other=0.0)
    error = value - tl.load(targets + rows, mask=known, other=0.0)
    slope = 2 * error / B
    loss = error * error
    if WEIGHTS:
        counts = tl.load(weights + rows, mask=known, other=0.0)
        slope *= counts
        loss *= counts
    slopes = tl.where(a[None, :] == action[:, None], slope[:, None], 0.0)
    at = rows[:, None] * A + a[None, :]
    tl.store(gradient + at, slopes, mask=known[:, None] & (a < A)[None, :])
    tl.store(parts + tl.program_id(0), tl.sum(loss, 0) / B)


@triton.jit
def descent_rule(loss, norm, halted, scale, skip, bad, LIMIT: tl.constexpr, HALTS: tl.constexpr):
    """See `losses.descent_rule`."""
    number = tl.load(loss) + tl.load(norm)
    wrong = tl.where(tl.abs(number) < float("inf"), 0.0, 1.0)
    tl.store(scale, tl.maximum((tl.load(norm) + _NORM_FLOOR) / LIMIT, 1.0))
    skipped = wrong
    if HALTS:
        skipped = tl.where(tl.load(halted) > 0, 1.0, wrong)
    tl.store(skip, skipped)
    tl.store(bad, wrong)
