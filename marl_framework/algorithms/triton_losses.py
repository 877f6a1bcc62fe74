"""Policies, losses and their gradients in Triton kernels; `loss_operators` launches them.

The twins are in `policy` and `losses`; gradients are those that autograd finds for these. One
program serves BLOCK_B of B transitions with A actions. Booleans come as int8. There are no atomic
sums: each program leaves a part of the loss.
"""

from __future__ import annotations

import triton
import triton.language as tl

_TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32


@triton.jit
def _log(p):
    """Logarithm that is finite everywhere."""
    return tl.log(tl.maximum(p, _TINY))


@triton.jit
def _policy(logits, masks, epsilon, at, inside):
    """Return the policy, the softmax in it, and the softmax' share of it."""
    allowed = tl.load(masks + at, mask=inside, other=0) != 0
    # Rows beyond the last transition must not divide by 0.
    allowed = allowed | (tl.max(allowed.to(tl.int32), 1) == 0)[:, None]
    logit = tl.where(allowed, tl.load(logits + at, mask=inside, other=0.0), -float("inf"))
    power = tl.exp(logit - tl.max(logit, 1)[:, None])
    softmax = power / tl.sum(power, 1)[:, None]
    number = tl.sum(allowed.to(tl.int32), 1)[:, None].to(tl.float32)
    floor = tl.load(epsilon)
    share = (1 - floor).to(tl.float32)
    uniform = tl.where(allowed, 1.0 / number, 0.0)
    return share * softmax + floor.to(tl.float32) * uniform, softmax, share


@triton.jit
def judge(
    logits,
    masks,
    epsilon,
    values,
    actions,
    returns,
    probabilities,
    advantages,
    B,
    A: tl.constexpr,
    RETURNS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """Write the policy [B, A] and the advantages [B] of the actions taken.

    Tensors:
        logits, values: [B, A].
        masks: allowed actions, [B, A].
        epsilon: floor of the policy, one float64.
        actions: taken, [B] int64.
        returns: of the actions taken, [B]; read where RETURNS, else their values are.
        probabilities, advantages: written.
    """
    rows, a = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_A)
    known = rows < B
    at = rows[:, None] * A + a[None, :]
    inside = known[:, None] & (a < A)[None, :]
    p, _, _ = _policy(logits, masks, epsilon, at, inside)
    value = tl.load(values + at, mask=inside, other=0.0)
    if RETURNS:
        gained = tl.load(returns + rows, mask=known, other=0.0)
    else:
        gained = tl.load(
            values + rows * A + tl.load(actions + rows, mask=known, other=0), mask=known, other=0.0
        )
    tl.store(probabilities + at, p, mask=inside)
    tl.store(advantages + rows, gained - tl.sum(p * value, 1), mask=known)


@triton.jit
def lose_actor(
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
    """Write the gradient of `losses.actor_loss` by the logits, and parts of the loss.

    Tensors:
        logits: [B, A].
        masks: allowed actions, [B, A].
        epsilon: floor of the policy, one float64.
        actions: taken, [B] int64.
        advantages: of the actions taken, [B].
        old: policy when the actions were taken, [B, A]; read where CLIP > 0.
        weights: how much each counts, [B]; read where WEIGHTS.
        gradient: [B, A], written.
        parts: one for each program, written.
    """
    rows, a = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_A)
    known = rows < B
    at = rows[:, None] * A + a[None, :]
    inside = known[:, None] & (a < A)[None, :]
    p, softmax, share = _policy(logits, masks, epsilon, at, inside)
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
def lose_critic(
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
    """Write the gradient of `losses.critic_loss` by the values, and parts of the loss.

    Tensors:
        values: [B, A].
        actions: taken, [B] int64.
        targets: [B].
        weights: how much each counts, [B]; read where WEIGHTS.
        gradient: [B, A], written.
        parts: one for each program, written.
    """
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
def decide(loss, norm, halted, scale, leave, bad, LIMIT: tl.constexpr, HALTS: tl.constexpr):
    """Write how the optimiser divides gradients, whether it leaves the weights, and whether bad.

    Tensors:
        loss, norm: of the gradient, scalars.
        halted: above 0 to leave the weights, scalar; read where HALTS.
        scale, leave, bad: scalars, written; `optimisers.descend` says what they are.
    """
    number = tl.load(loss) + tl.load(norm)
    wrong = tl.where(tl.abs(number) < float("inf"), 0.0, 1.0)
    tl.store(scale, tl.maximum((tl.load(norm) + 1e-6) / LIMIT, 1.0))
    left = wrong
    if HALTS:
        left = tl.where(tl.load(halted) > 0, 1.0, wrong)
    tl.store(leave, left)
    tl.store(bad, wrong)
