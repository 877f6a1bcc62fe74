"""Contract of the maps that networks see: each network's maps of a UAV in one kernel.

`observations.channels` says what each channel shows, and draws it in plain operators. A channel's
slot is a field of `ActorPlaces` or `CriticPlaces`: its place among the maps, -1 if it is off.

E missions, N UAVs, maps of R × C cells, lattice X × Y × Z. All tensors are contiguous.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.device import launched_on
from marl_framework.kernels.versions import (
    Kernel,
    Version,
    as_bytes,
    check_contiguous,
    load,
    power_of_two,
)

KERNELS = {
    "draw_actor_maps": Kernel("observations.builder.ObservationBuilder.actor", triton="draw_actor"),
    "draw_critic_maps": Kernel(
        "observations.builder.ObservationBuilder.critic_only", triton="draw_critic"
    ),
}
MOST_COLUMNS = 128
"""Of a lattice that the kernels serve."""


class ActorInputs(NamedTuple):
    """Fields of `mission.state.Seen`."""

    positions: Tensor
    """[E, N, 3] int64."""
    t: Tensor
    """[E] int64."""
    heard: Tensor
    """[E, N, N] bool."""
    pooled_beliefs: Tensor
    """[E, N, X, Y] float32."""
    pooled_readings: Tensor
    """[E, N, X, Y] float32."""
    pooled_uncertainty: Tensor
    """[E, N, X, Y] float32."""
    active: Tensor
    """[E, N] bool; all UAVs are active unless `has_inactive`."""
    team_size: Tensor
    """[E] int64; N unless `has_inactive`."""
    budget: Tensor
    """[E] int64."""
    open_share: Tensor
    """[E, X, Y] float32; missions may share one table."""


class ActorTables(NamedTuple):
    """Tables of `mission.camera.Camera`."""

    boxes: Tensor
    """Footprints, [X, Y, Z, 8] int64."""
    cover_x: Tensor
    """[X, Z, X] float32."""
    cover_y: Tensor
    """[Y, Z, Y] float32."""
    shift: Tensor
    """[Z, 2] float32."""


class ActorPlaces(NamedTuple):
    """Slots of the actor's channels."""

    budget: int = -1
    agent_id: int = -1
    position: int = -1
    entropy: int = -1
    local_entropy: int = -1
    probability: int = -1
    footprint: int = -1
    uncertainty: int = -1
    no_fly: int = -1
    centred_entropy: int = -1
    centred_probability: int = -1
    centred_footprint: int = -1
    centred_uncertainty: int = -1
    centred_no_fly: int = -1


class CriticInputs(NamedTuple):
    """Fields of `mission.state.MissionState`, and the actions chosen."""

    positions: Tensor
    """[E, N, 3] int64."""
    actions: Tensor
    """[E, N] int64."""
    pooled_global: Tensor
    """[E, X, Y] float32."""
    pooled_global_uncertainty: Tensor
    """[E, X, Y] float32."""
    active: Tensor
    """[E, N] bool; all UAVs are active unless `has_inactive`."""


class CriticPlaces(NamedTuple):
    """Slots of the channels that only the critic sees."""

    global_position: int = -1
    global_entropy: int = -1
    global_probability: int = -1
    global_footprint: int = -1
    other_actions: int = -1
    global_uncertainty: int = -1


def serve(config: Config) -> bool:
    """Return whether the kernels of maps and of actions serve missions: without costs of moves."""
    return not config.missions.has_cost and config.geometry.lattice_shape[1] <= MOST_COLUMNS


class Sizes(NamedTuple):
    """Constants that kernels are compiled for; see above for the letters."""

    R: int
    C: int
    N: int
    X: int
    Y: int
    Z: int
    OF_UAV: int
    """Numbers in memory from one UAV to the next."""
    BLOCK_Y: int
    BLOCK_S: int
    BLOCK_X: int = 16

    @classmethod
    def of(cls, out: Tensor, levels: int, cells: list[int]) -> Sizes:
        """Return the constants for maps in `out` and a number of altitudes."""
        _, n, _, x, y = out.shape
        if not out[0, 0].is_contiguous() or out.stride(0) != n * out.stride(1):
            raise ValueError("out: maps of a UAV, and UAVs, must follow one another in memory")
        wide, strips = (max(16, power_of_two(number)) for number in (y, 2 * n + 2))
        rows, cols = cells
        return cls(rows, cols, n, x, y, levels, out.stride(1), wide, strips)


@torch.library.custom_op("marl_framework::draw_actor_maps", mutates_args=("out",))
def draw_actor_maps(
    inputs: list[Tensor],
    tables: list[Tensor],
    places: list[int],
    cells: list[int],
    has_inactive: bool,
    out: Tensor,
) -> None:
    """Draw what each UAV knows.

    Args:
        inputs: fields of `ActorInputs`.
        tables: fields of `ActorTables`.
        places: fields of `ActorPlaces`: places in `out`, whose other channels stay unwritten.
        cells: of the map, [R, C].
        has_inactive: whether UAVs may be inactive.
        out: [E, N, channels, X, Y] of any precision, written; maps of a UAV, and UAVs, follow one
            another in memory.
    """
    *tensors, open_share = inputs
    check_contiguous(*tensors, *tables, open_share[0])
    sizes = Sizes.of(out, tables[0].shape[2], cells)
    with launched_on(out):
        load("maps", Version.TRITON).draw_actor[_grid(out, sizes)](
            ActorInputs(*map(as_bytes, inputs)),
            ActorTables(*tables),
            open_share.stride(0),
            out,
            S=sizes,
            AT=ActorPlaces(*places),
            MASKED=has_inactive,
            FAST=out.is_cuda,
            num_warps=4,
        )


@torch.library.custom_op("marl_framework::draw_critic_maps", mutates_args=("out",))
def draw_critic_maps(
    inputs: list[Tensor],
    boxes: Tensor,
    places: list[int],
    cells: list[int],
    has_inactive: bool,
    num_actions: int,
    out: Tensor,
) -> None:
    """Draw what only the critic sees of each UAV.

    Args:
        inputs: fields of `CriticInputs`.
        boxes: see `ActorTables`.
        places: fields of `CriticPlaces`.
        cells: of the map, [R, C].
        has_inactive: whether UAVs may be inactive.
        num_actions: A.
        out: as for `draw_actor_maps`.
    """
    check_contiguous(*inputs, boxes)
    sizes = Sizes.of(out, boxes.shape[2], cells)
    with launched_on(out):
        load("maps", Version.TRITON).draw_critic[_grid(out, sizes)](
            CriticInputs(*map(as_bytes, inputs)),
            boxes,
            out,
            S=sizes,
            AT=CriticPlaces(*places),
            ACTIONS=num_actions,
            MASKED=has_inactive,
            FAST=out.is_cuda,
            num_warps=4,
        )


@draw_actor_maps.register_fake
@draw_critic_maps.register_fake
def _(*arguments: Any) -> None:
    """Only the mutated arguments come out."""


def _grid(out: Tensor, sizes: Sizes) -> tuple[int, int]:
    return len(out) * sizes.N, -(-sizes.X // sizes.BLOCK_X)
