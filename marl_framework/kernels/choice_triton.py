"""The choice of actions in Triton; see `choice`."""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.kernels.losses import TINY
from marl_framework.kernels.losses_triton import policy

_TINY = tl.constexpr(TINY)


@triton.jit
def choose(
    c,
    stride,
    E,
    Y: tl.constexpr,
    Z: tl.constexpr,
    N: tl.constexpr,
    A: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """Draw the actions of BLOCK_E missions; tables of moves lie `stride` apart, 0 if shared."""
    missions = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    flown = missions < E
    a, uavs = tl.arange(0, BLOCK_A), tl.arange(0, BLOCK_N)[None, :]
    known = a < A
    dx = tl.load(c.offsets + a * 3, mask=known, other=0).to(tl.int32)[None, :]
    dy = tl.load(c.offsets + a * 3 + 1, mask=known, other=0).to(tl.int32)[None, :]
    taken = tl.full([BLOCK_E, BLOCK_N], -1, tl.int32)  # cells
    for i in range(N):
        uav = missions * N + i
        x = tl.load(c.positions + uav * 3, mask=flown, other=0)
        y = tl.load(c.positions + uav * 3 + 1, mask=flown, other=0)
        z = tl.load(c.positions + uav * 3 + 2, mask=flown, other=0)
        inside = flown[:, None] & known[None, :]
        way = c.moves + (missions * stride + ((x * Y + y) * Z + z) * A)[:, None] + a[None, :]
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
        p, _, _ = policy(c.logits, allowed, c.epsilon, at, inside)
        drawn = tl.load(c.uniform + at, mask=inside, other=0.5)
        race = p / -tl.log(tl.maximum(drawn, _TINY))
        # Logits that are not finite make it NaN; they must not lead off the lattice.
        race = tl.where(allowed, tl.where(race == race, race, 0.0), -1.0)
        action = tl.argmax(race, 1)
        reached = tl.max(tl.where(a[None, :] == action[:, None], goal, -1), 1)[:, None]
        flies = tl.load(c.active + uav, mask=flown, other=0)[:, None] != 0
        taken = tl.where((uavs == i) & flies, reached, taken)
        tl.store(c.actions + uav, action, mask=flown)
        tl.store(c.masks + at, allowed.to(tl.int8), mask=inside)
        tl.store(c.probabilities + at, p, mask=inside)
