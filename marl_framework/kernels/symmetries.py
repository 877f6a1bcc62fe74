"""Contract of turned transitions: a batch of transitions on flipped or turned areas."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.device import launched_on
from marl_framework.kernels.versions import (
    Kernel,
    Version,
    as_bytes,
    check_contiguous,
    load,
    power_of_two,
)

KERNELS = {"take_turned": Kernel("observations.symmetry.Symmetries.apply", triton="take")}
BLOCK = 128
"""Cells of a program."""


class Tables(NamedTuple):
    """Effect of S symmetries on maps of X × Y cells and on A actions."""

    cells: Tensor
    """Source of each cell, [S, X·Y] int64."""
    actions: Tensor
    """Turned actions, [S, A] int64."""
    sources: Tensor
    """Actions that become each action, [S, A] int64."""
    codes: Tensor
    """Turned values of maps that show actions: no action, then each of them, [S, A + 1] float32."""


class Flown(NamedTuple):
    """Fields of M transitions, see `algorithms.batch.Transitions`; contiguous."""

    observations: Tensor
    """[M, C_a, X, Y]."""
    critic_maps: Tensor
    """[M, C_c - C_a, X, Y]."""
    actions: Tensor
    """[M] int64."""
    masks: Tensor
    """[M, A] bool."""
    old_probabilities: Tensor
    """[M, A] float32."""
    targets: Tensor
    """[M] float32."""


class Turned(NamedTuple):
    """The same of B of them, with all maps in one tensor."""

    maps: Tensor
    """[B, C_c, X, Y]."""
    actions: Tensor
    masks: Tensor
    old_probabilities: Tensor
    targets: Tensor


@torch.library.custom_op("marl_framework::take_turned", mutates_args=())
def take_turned(
    index: Tensor, which: Tensor, tables: list[Tensor], flown: list[Tensor], map_of_actions: int
) -> list[Tensor]:
    """Return transitions as symmetries show them; the fields of `Turned`.

    Args:
        index: of the transitions, [B] int64.
        which: symmetry of each, [B] int64.
        tables: fields of `Tables`.
        flown: fields of `Flown`.
        map_of_actions: critic map that shows actions; -1 for none.
    """
    check_contiguous(index, which, *tables, *flown)
    out, given = _empty(index, flown), Flown(*flown)
    size, a = tables[0].shape[1], given.masks.shape[1]
    with launched_on(index):
        load("symmetries", Version.TRITON).take[(len(index), -(-size // BLOCK))](
            index,
            which,
            Tables(*tables),
            Flown(*map(as_bytes, flown)),
            Turned(*map(as_bytes, out)),
            CELLS=size,
            SEEN=given.observations.shape[1],
            OWN=given.critic_maps.shape[1],
            OTHERS=map_of_actions,
            A=a,
            BLOCK=BLOCK,
            BLOCK_A=power_of_two(a),
            num_warps=1,
        )
    return list(out)


@take_turned.register_fake
def _(index: Tensor, which: Tensor, tables: Any, flown: list[Tensor], _: int) -> list[Tensor]:
    return list(_empty(index, flown))


def _empty(index: Tensor, tensors: list[Tensor]) -> Turned:
    """Return memory for a batch."""
    flown, batch = Flown(*tensors), len(index)
    seen, own = flown.observations, flown.critic_maps
    maps = seen.new_empty(batch, seen.shape[1] + own.shape[1], *seen.shape[2:])
    return Turned(maps, *(each.new_empty(batch, *each.shape[1:]) for each in flown[2:]))
