"""Masks and actions of whole teams in one Triton kernel; `team_operators` launches it."""

from __future__ import annotations

import triton
import triton.language as tl

_TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32


@triton.jit
def choose(
    logits,
    uniform,
    epsilon,
    positions,
    moves,
    stride,
    active,
    offsets,
    actions,
    masks,
    probabilities,
    E,
    Y: tl.constexpr,
    Z: tl.constexpr,
    N: tl.constexpr,
    A: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """Let the UAVs of BLOCK_E missions draw their actions one after the other.

    The twins are `Lattice.choose_in_order`, `policy_probabilities` and `sample_actions`.

    Tensors:
        logits: [E, N, A].
        uniform: draws in [0, 1), [E, N, A].
        epsilon: floor of the policy, one float64.
        positions: [E, N, 3] int64, on a lattice of X × Y × Z.
        moves: allowed by the mission, [E, X, Y, Z, A] int8, `stride` apart; 0: one table for all.
        active: UAVs that fly, [E, N] int8; the others take no cell.
        offsets: steps of the actions, [A, 3] int64.
        actions: [E, N] int64, written.
        masks: allowed actions, [E, N, A] int8, written.
        probabilities: of the policy, [E, N, A], written.
    """
    missions = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    flown = missions < E
    a, uavs = tl.arange(0, BLOCK_A), tl.arange(0, BLOCK_N)[None, :]
    known = a < A
    dx = tl.load(offsets + a * 3, mask=known, other=0).to(tl.int32)[None, :]
    dy = tl.load(offsets + a * 3 + 1, mask=known, other=0).to(tl.int32)[None, :]
    floor = tl.load(epsilon)
    share = (1 - floor).to(tl.float32)
    floor = floor.to(tl.float32)
    taken = tl.full([BLOCK_E, BLOCK_N], -1, tl.int32)  # cells
    for i in range(N):
        uav = missions * N + i
        x = tl.load(positions + uav * 3, mask=flown, other=0)
        y = tl.load(positions + uav * 3 + 1, mask=flown, other=0)
        z = tl.load(positions + uav * 3 + 2, mask=flown, other=0)
        inside = flown[:, None] & known[None, :]
        way = moves + (missions * stride + ((x * Y + y) * Z + z) * A)[:, None] + a[None, :]
        # Missions beyond the last one may do all, so that no number there is infinite.
        allowed = (tl.load(way, mask=inside, other=1) != 0) & known[None, :]
        goal = (x.to(tl.int32)[:, None] + dx) * Y + y.to(tl.int32)[:, None] + dy
        for j in range(i):
            cell = tl.max(tl.where(uavs == j, taken, -1), 1)[:, None]
            # The action that stays where all lead into cells that are taken.
            last = tl.max(tl.where(allowed, a[None, :], -1), 1)[:, None]
            free = allowed & (goal != cell)
            blocked = tl.max(free.to(tl.int32), 1)[:, None] == 0
            allowed = free | (blocked & (a[None, :] == last))
        at = uav[:, None] * A + a[None, :]
        logit = tl.load(logits + at, mask=inside, other=0.0)
        logit = tl.where(allowed, logit, -float("inf"))
        power = tl.exp(logit - tl.max(logit, 1)[:, None])
        softmax = power / tl.sum(power, 1)[:, None]
        number = tl.sum(allowed.to(tl.int32), 1)[:, None].to(tl.float32)
        p = share * softmax + floor * tl.where(allowed, 1.0 / number, 0.0)
        drawn = tl.load(uniform + at, mask=inside, other=0.5)
        race = p / -tl.log(tl.maximum(drawn, _TINY))
        # Logits that are not finite make it NaN; they must not lead off the lattice.
        race = tl.where(allowed, tl.where(race == race, race, 0.0), -1.0)
        action = tl.argmax(race, 1)
        reached = tl.max(tl.where(a[None, :] == action[:, None], goal, -1), 1)[:, None]
        flies = tl.load(active + uav, mask=flown, other=0)[:, None] != 0
        taken = tl.where((uavs == i) & flies, reached, taken)
        tl.store(actions + uav, action, mask=flown)
        tl.store(masks + at, allowed.to(tl.int8), mask=inside)
        tl.store(probabilities + at, p, mask=inside)
