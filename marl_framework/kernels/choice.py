"""Contract of the choice of actions: masks, policy and draws of a whole team in one kernel."""

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

KERNELS = {"choose_actions": Kernel("algorithms.rollout.draw_one_by_one", triton="choose")}
MISSIONS = 16
"""Missions of a program."""


class Choice(NamedTuple):
    """Arguments: E missions of N UAVs with A actions on a lattice of X × Y × Z.

    All are contiguous.
    """

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
    inputs = logits, uniform, epsilon, positions, moves, active, offsets
    choice = Choice(*inputs, actions, masks, probabilities)
    check_contiguous(*choice._replace(moves=moves[0]))
    e, n, a = logits.shape
    with launched_on(logits):
        load("choice", Version.TRITON).choose[(-(-e // MISSIONS),)](
            Choice(*map(as_bytes, choice)),
            moves.stride(0),
            e,
            Y=moves.shape[2],
            Z=moves.shape[3],
            N=n,
            A=a,
            BLOCK_E=MISSIONS,
            BLOCK_N=power_of_two(n),
            BLOCK_A=power_of_two(a),
            num_warps=1,
        )


@choose_actions.register_fake
def _(*arguments: Any) -> None:
    """Only the mutated arguments come out."""
