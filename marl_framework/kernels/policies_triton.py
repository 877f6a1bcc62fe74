"""Action sampling, losses and their gradients in Triton; see `policies`.

One program of a loss kernel processes a block of transitions. There are no atomic sums: each
program writes one term of the loss. Booleans are passed as int8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.kernels.policies import MISSIONS, NORM_FLOOR, TINY

_TINY, _NORM_FLOOR = tl.constexpr(TINY), tl.constexpr(NORM_FLOOR)
_MISSIONS = tl.constexpr(MISSIONS)


@triton.jit
def _log(p):
    """Return a logarithm that is finite, except for NaN."""
    return tl.log(_at_least(p, _TINY))


@triton.jit
def _at_least(value, limit):
    """Return the maximum; propagate NaN, so that the update is skipped."""
    return tl.maximum(value, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _at_most(value, limit):
    """Minimum that keeps NaN."""
    return tl.minimum(value, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def policy(logits, allowed, epsilon, at, inside):
    """Return the policy, its softmax, and the share of the softmax in the policy."""
    logit = tl.where(allowed, tl.load(logits + at, mask=inside, other=0.0), -float("inf"))
    power = tl.exp(logit - tl.max(logit, 1)[:, None])
    softmax = power / tl.sum(power, 1)[:, None]
    number = tl.sum(allowed.to(tl.int32), 1)[:, None].to(tl.float32)
    floor = tl.load(epsilon)
    share = (1 - floor).to(tl.float32)
    uniform = tl.where(allowed, 1.0 / number, 0.0)
    return share * softmax + floor.to(tl.float32) * uniform, softmax, share


@triton.jit
def choose(c, stride, E, S: tl.constexpr):
    """See `policies.choose_actions`; `stride` between the missions' tables, 0 if shared."""
    missions = tl.program_id(0).to(tl.int64) * _MISSIONS + tl.arange(0, _MISSIONS)
    flown = missions < E
    a, uavs = tl.arange(0, S.BLOCK_A), tl.arange(0, S.BLOCK_N)[None, :]
    known = a < S.A
    dx = tl.load(c.offsets + a * 3, mask=known, other=0).to(tl.int32)[None, :]
    dy = tl.load(c.offsets + a * 3 + 1, mask=known, other=0).to(tl.int32)[None, :]
    BLOCK_N: tl.constexpr = S.BLOCK_N
    taken = tl.full([_MISSIONS, BLOCK_N], -1, tl.int32)  # cells
    for i in range(S.N):
        uav = missions * S.N + i
        x = tl.load(c.positions + uav * 3, mask=flown, other=0)
        y = tl.load(c.positions + uav * 3 + 1, mask=flown, other=0)
        z = tl.load(c.positions + uav * 3 + 2, mask=flown, other=0)
        inside = flown[:, None] & known[None, :]
        way = c.moves + (missions * stride + ((x * S.Y + y) * S.Z + z) * S.A)[:, None] + a[None, :]
        # Beyond the last mission all actions are allowed, so that all numbers are finite.
        allowed = (tl.load(way, mask=inside, other=1) != 0) & known[None, :]
        goal = (x.to(tl.int32)[:, None] + dx) * S.Y + y.to(tl.int32)[:, None] + dy
        for j in range(i):
            cell = tl.max(tl.where(uavs == j, taken, -1), 1)[:, None]
            # The action that remains allowed if all actions lead into occupied cells.
            last = tl.max(tl.where(allowed, a[None, :], -1), 1)[:, None]
            free = allowed & (goal != cell)
            blocked = tl.max(free.to(tl.int32), 1)[:, None] == 0
            allowed = free | (blocked & (a[None, :] == last))
        at = uav[:, None] * S.A + a[None, :]
        p, _, _ = policy(c.logits, allowed, c.epsilon, at, inside)
        drawn = tl.load(c.uniform + at, mask=inside, other=0.5)
        race = p / -tl.log(tl.maximum(drawn, _TINY))
        # Non-finite logits give NaN; the action must nevertheless stay on the lattice.
        race = tl.where(allowed, tl.where(race == race, race, 0.0), -1.0)
        action = tl.argmax(race, 1)
        reached = tl.max(tl.where(a[None, :] == action[:, None], goal, -1), 1)[:, None]
        flies = tl.load(c.active + uav, mask=flown, other=0)[:, None] != 0
        taken = tl.where((uavs == i) & flies, reached, taken)
        tl.store(c.actions + uav, action, mask=flown)
        tl.store(c.masks + at, allowed.to(tl.int8), mask=inside)
        tl.store(c.probabilities + at, p, mask=inside)


@triton.jit
def _block(B, S: tl.constexpr):
    """Return a program's transitions, their validity, and the indices of their actions."""
    rows, a = tl.program_id(0).to(tl.int64) * S.BLOCK + tl.arange(0, S.BLOCK), _actions(S)
    known = rows < B
    return rows, known, rows[:, None] * S.A + a, known[:, None] & (a < S.A)


@triton.jit
def _actions(S: tl.constexpr):
    return tl.arange(0, S.BLOCK_A)[None, :]


@triton.jit
def _allowed(masks, at, inside):
    """Return allowed actions; beyond the last transition all, to avoid a division by 0."""
    allowed = tl.load(masks + at, mask=inside, other=0) != 0
    return allowed | (tl.max(allowed.to(tl.int32), 1) == 0)[:, None]


@triton.jit
def advantages(
    logits, masks, epsilon, values, actions, returns, probabilities, taken, B, S: tl.constexpr
):
    """See `policies.policy_advantages`; the advantages are written into `taken`."""
    rows, known, at, inside = _block(B, S)
    p, _, _ = policy(logits, _allowed(masks, at, inside), epsilon, at, inside)
    value = tl.load(values + at, mask=inside, other=0.0)
    if S.returns:
        credit = tl.load(returns + rows, mask=known, other=0.0)
    else:
        credit = tl.load(
            values + rows * S.A + tl.load(actions + rows, mask=known, other=0),
            mask=known,
            other=0.0,
        )
    tl.store(probabilities + at, p, mask=inside)
    tl.store(taken + rows, credit - tl.sum(p * value, 1), mask=known)


@triton.jit
def actor_loss(
    logits, masks, epsilon, actions, advantages, old, weights, gradient, terms, B, S: tl.constexpr
):
    """See `policies.actor_gradient`; each program writes one entry of `terms`."""
    rows, known, at, inside = _block(B, S)
    p, softmax, share = policy(logits, _allowed(masks, at, inside), epsilon, at, inside)
    action = tl.load(actions + rows, mask=known, other=0)
    taken = _actions(S) == action[:, None]
    advantage = tl.load(advantages + rows, mask=known, other=0.0)
    chosen = tl.sum(tl.where(taken, p, 0.0), 1)
    if S.clip > 0:
        before = tl.load(old + rows * S.A + action, mask=known, other=1.0)
        ratio = chosen / before
        clipped = _at_most(_at_least(ratio, 1 - S.clip), 1 + S.clip)
        loss = -tl.minimum(ratio * advantage, clipped * advantage)
        slope = -tl.where(ratio * advantage <= clipped * advantage, advantage, 0.0) / before
    else:
        loss = -advantage * _log(chosen)
        slope = -tl.where(chosen >= _TINY, advantage / _at_least(chosen, _TINY), 0.0)
    slopes = tl.where(taken, slope[:, None], 0.0)
    if S.entropy > 0:
        loss += S.entropy * tl.sum(p * _log(p), 1)
        slopes += S.entropy * _log(p)  # up to a constant, which the softmax cancels
    if S.weights:
        counts = tl.load(weights + rows, mask=known, other=0.0)
        loss *= counts
        counted = (counts != 0)[:, None]  # avoids infinity times 0
        slopes = tl.where(counted, slopes * counts[:, None], 0.0)
    mean = tl.sum(slopes * softmax, 1)[:, None]
    tl.store(gradient + at, share * softmax * (slopes - mean) / B, mask=inside)
    tl.store(terms + tl.program_id(0), tl.sum(tl.where(known, loss, 0.0), 0) / B)


@triton.jit
def critic_loss(values, actions, targets, weights, gradient, terms, B, S: tl.constexpr):
    """See `policies.critic_gradient`; each program writes one entry of `terms`."""
    rows, known, at, inside = _block(B, S)
    action = tl.load(actions + rows, mask=known, other=0)
    value = tl.load(values + rows * S.A + action, mask=known, other=0.0)
    error = value - tl.load(targets + rows, mask=known, other=0.0)
    slope = 2 * error / B
    loss = error * error
    if S.weights:
        counts = tl.load(weights + rows, mask=known, other=0.0)
        slope *= counts
        loss *= counts
    slopes = tl.where(_actions(S) == action[:, None], slope[:, None], 0.0)
    tl.store(gradient + at, slopes, mask=inside)
    tl.store(terms + tl.program_id(0), tl.sum(loss, 0) / B)


@triton.jit
def descent_rule(loss, norm, halted, scale, skip, bad, LIMIT: tl.constexpr, HALTS: tl.constexpr):
    """See `policies.descent_rule`."""
    number = tl.load(loss) + tl.load(norm)
    wrong = tl.where(tl.abs(number) < float("inf"), 0.0, 1.0)
    tl.store(scale, _at_least((tl.load(norm) + _NORM_FLOOR) / LIMIT, 1.0))
    skipped = wrong
    if HALTS:
        skipped = tl.where(tl.load(halted) > 0, 1.0, wrong)
    tl.store(skip, skipped)
    tl.store(bad, wrong)
