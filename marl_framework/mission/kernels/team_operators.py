"""What teams see and choose, in Triton kernels as PyTorch operators.

See `triton_maps` and `triton_choice`, and `window_operators` for what all operators keep to.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from marl_framework.device import launched_on
from marl_framework.mission.kernels import triton_choice, triton_maps
from marl_framework.mission.kernels.window_operators import as_bytes, check_contiguous

MOST_COLUMNS = 128
ROWS = 16  # of the lattice that a program draws
MISSIONS = 16  # that a program chooses for
NOT_DRAWN = "-"
"""In the place of a channel that no kernel draws."""


def fits(shape: tuple[int, ...]) -> bool:
    """Return whether the maps of a lattice are small enough for the kernels."""
    return shape[1] <= MOST_COLUMNS


@torch.library.custom_op("marl_framework::draw_actor_maps", mutates_args=("out",))
def draw_actor_maps(
    positions: Tensor,
    t: Tensor,
    heard: Tensor,
    beliefs: Tensor,
    readings: Tensor,
    pooled_uncertainty: Tensor,
    open_share: Tensor,
    boxes: Tensor,
    cover_x: Tensor,
    cover_y: Tensor,
    shift: Tensor,
    active: Tensor,
    team_size: Tensor,
    budget: Tensor,
    cells: list[int],
    has_inactive: bool,
    channels: str,
    out: Tensor,
) -> None:
    """Draw what each UAV knows.

    Args:
        positions: [E, N, 3] int64.
        t: moves made, [E] int64.
        heard: [E, N, N] bool.
        beliefs: pooled, [E, N, X, Y].
        readings: pooled, [E, N, X, Y].
        pooled_uncertainty: pooled uncertainty, [E, N, X, Y].
        open_share: see `MissionState.open_share`, [E, X, Y]; missions may share one table.
        boxes: see `Camera.box_table`, [X, Y, Z, 8] int64.
        cover_x: see `Camera.cover_tables`, [X, Z, X].
        cover_y: [Y, Z, Y].
        shift: see `belief.reading_shift`, [Z, 2].
        active: UAVs that fly, [E, N] bool; all do unless `has_inactive`.
        team_size: UAVs that flew at the start, [E] int64.
        budget: moves before the last one, [E] int64.
        cells: of the map, R and C.
        has_inactive: whether some UAVs may not fly.
        channels: names, in order, between spaces; the place of a `NOT_DRAWN` stays unwritten.
        out: [E, N, channels, X, Y] of any precision, written.
    """
    seen = (positions, t, heard, beliefs, readings, pooled_uncertainty)
    tensors = (*seen, boxes, cover_x, cover_y, shift, active, team_size, budget)
    check_contiguous(*tensors, open_share[0])
    places = _places(channels, triton_maps.draw_actor.arg_names)
    with launched_on(positions):
        triton_maps.draw_actor[_grid(out)](
            *map(as_bytes, tensors),
            open_share,
            open_share.stride(0),
            out,
            MASKED=has_inactive,
            **places,
            **_dimensions(out, boxes, cells),
        )


@torch.library.custom_op("marl_framework::draw_critic_maps", mutates_args=("out",))
def draw_critic_maps(
    positions: Tensor,
    actions: Tensor,
    belief: Tensor,
    pooled_uncertainty: Tensor,
    boxes: Tensor,
    active: Tensor,
    cells: list[int],
    has_inactive: bool,
    num_actions: int,
    channels: str,
    out: Tensor,
) -> None:
    """Draw what only the critic sees of each UAV.

    Args:
        positions: [E, N, 3] int64.
        actions: chosen, [E, N] int64.
        belief: global and pooled, [E, X, Y].
        pooled_uncertainty: its pooled uncertainty, [E, X, Y].
        boxes: see `Camera.box_table`, [X, Y, Z, 8] int64.
        active: UAVs that fly, [E, N] bool; all do unless `has_inactive`.
        cells: of the map, R and C.
        has_inactive: whether some UAVs may not fly.
        num_actions: A.
        channels: names, in order, between spaces; the place of a `NOT_DRAWN` stays unwritten.
        out: [E, N, channels, X, Y] of any precision, written.
    """
    check_contiguous(positions, actions, belief, pooled_uncertainty, boxes, active)
    with launched_on(positions):
        triton_maps.draw_critic[_grid(out)](
            positions,
            actions,
            belief,
            pooled_uncertainty,
            boxes,
            as_bytes(active),
            out,
            ACTIONS=num_actions,
            MASKED=has_inactive,
            **_places(channels, triton_maps.draw_critic.arg_names),
            **_dimensions(out, boxes, cells),
        )


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
    """Let the UAVs draw actions one after the other, each under its mask.

    Args:
        logits: [E, N, A] float32.
        uniform: draws in [0, 1), [E, N, A].
        epsilon: floor of the policy, [] float64.
        positions: [E, N, 3] int64.
        moves: see `MissionState.moves`, [E, X, Y, Z, A] bool; missions may share one table.
        active: UAVs that fly, [E, N] bool; the others take no cell.
        offsets: of the actions, [A, 3] int64.
        actions: [E, N] int64, written.
        masks: allowed actions, [E, N, A] bool, written.
        probabilities: of the policy, [E, N, A], written.
    """
    check_contiguous(
        logits, uniform, positions, moves[0], active, offsets, actions, masks, probabilities
    )
    e, n, a = logits.shape
    with launched_on(logits):
        triton_choice.choose[(triton.cdiv(e, MISSIONS),)](
            logits,
            uniform,
            epsilon,
            positions,
            as_bytes(moves),
            moves.stride(0),
            as_bytes(active),
            offsets,
            actions,
            as_bytes(masks),
            probabilities,
            e,
            Y=moves.shape[2],
            Z=moves.shape[3],
            N=n,
            A=a,
            BLOCK_E=MISSIONS,
            BLOCK_N=triton.next_power_of_2(n),
            BLOCK_A=triton.next_power_of_2(a),
            num_warps=1,
        )


@draw_actor_maps.register_fake
def _(*arguments: Any) -> None:
    """Nothing but the mutated arguments comes out."""


@draw_critic_maps.register_fake
def _(*arguments: Any) -> None:
    """Nothing but the mutated arguments comes out."""


@choose_actions.register_fake
def _(*arguments: Any) -> None:
    """Nothing but the mutated arguments comes out."""


def _grid(out: Tensor) -> tuple[int, int]:
    e, n, _, x, _ = out.shape
    return e * n, triton.cdiv(x, ROWS)


def _places(channels: str, known: list[str]) -> dict[str, int]:
    """Return a kernel's constants for the channels' places: those that `channels` lacks are -1."""
    names = enumerate(channels.split())
    places = {name.upper(): place for place, name in names if name != NOT_DRAWN}
    off = dict.fromkeys(known[known.index("BLOCK_S") + 1 :], -1)
    if unknown := places.keys() - off.keys():
        raise ValueError(f"no kernel draws {', '.join(sorted(unknown))}")
    return off | places


def _dimensions(out: Tensor, boxes: Tensor, cells: list[int]) -> dict[str, Any]:
    """Return the other constants that kernels are compiled for."""
    _, n, _, x, y = out.shape
    if not out[0, 0].is_contiguous() or out.stride(0) != n * out.stride(1):
        raise ValueError("kernels need maps of a UAV, and UAVs, one after the other")
    return {
        "R": cells[0],
        "C": cells[1],
        "X": x,
        "Y": y,
        "Z": boxes.shape[2],
        "N": n,
        "OF_UAV": out.stride(1),
        "FAST": out.is_cuda,
        "BLOCK_X": ROWS,
        "BLOCK_Y": max(16, triton.next_power_of_2(y)),
        "BLOCK_S": max(16, triton.next_power_of_2(2 * n + 2)),
        "num_warps": 4,
    }
