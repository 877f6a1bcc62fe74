"""Contract of the kernels that draw network inputs and that flip or turn transitions.

One kernel call draws all channels of a UAV; `observations.channels` has the plain operators. The
fields of `ActorPlaces` and `CriticPlaces` are slots: a channel's index in the output, or -1 if the
channel is off.

Dimensions: E missions, N UAVs, maps of R × C cells, lattice X × Y × Z. Tensors must be contiguous.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels.versions import block, check_contiguous, launch

MOST_FOOTPRINTS = 31
"""Largest number of UAVs whose footprints the kernels draw; more edges fit no registers."""
ROWS, COLUMNS, CELLS = 16, 32, 128
"""Lattice rows and columns (drawn maps) and cells (turned maps) that one program handles."""


class ActorInputs(NamedTuple):
    """Fields of `mission.state.Seen` that the actor's channels read."""

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
    """[E, X, Y] float32; missions may share one map (stride 0)."""


class ActorTables(NamedTuple):
    """Tables of `mission.camera.Camera` that the actor's channels read."""

    boxes: Tensor
    """Footprints, [X, Y, Z, 8] int64."""
    cover_x: Tensor
    """[X, Z, X] float32."""
    cover_y: Tensor
    """[Y, Z, Y] float32."""
    shift: Tensor
    """[Z, 2] float32."""


class ActorPlaces(NamedTuple):
    """Slot of each actor channel; -1 if the channel is off."""

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
    """Fields of `mission.state.MissionState` that critic channels read, and the chosen actions."""

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
    """Slot of each channel that only the critic sees; -1 if the channel is off."""

    global_position: int = -1
    global_entropy: int = -1
    global_probability: int = -1
    global_footprint: int = -1
    other_actions: int = -1
    global_uncertainty: int = -1


def supports(config: Config) -> bool:
    """Return whether the kernels know the missions: those without costs and delays of messages."""
    return not (config.missions.has_cost or config.missions.has_delays)


class Sizes(NamedTuple):
    """Compile-time constants of the kernels; for the letters, see the module docstring."""

    R: int
    C: int
    N: int
    X: int
    Y: int
    Z: int
    OF_UAV: int
    """Stride in memory from one UAV to the next [elements]."""
    BLOCK_Y: int
    BLOCK_S: int
    masked: bool
    """Whether UAVs may be inactive."""

    @classmethod
    def of(cls, out: Tensor, levels: int, cells: list[int], masked: bool) -> Sizes:
        """Return the constants for the output `out`, number of altitudes and map cells."""
        _, n, _, x, y = out.shape
        if not out[0, 0].is_contiguous() or out.stride(0) != n * out.stride(1):
            raise ValueError("out: maps of one UAV, and all UAVs, must be contiguous")
        wide, strips = (max(16, block(number)) for number in (min(y, COLUMNS), 2 * n + 2))
        rows, cols = cells
        return cls(rows, cols, n, x, y, levels, out.stride(1), wide, strips, masked)


@torch.library.custom_op("marl_framework::draw_actor_maps", mutates_args=("out",))
def draw_actor_maps(
    inputs: list[Tensor],
    tables: list[Tensor],
    places: list[int],
    cells: list[int],
    has_inactive: bool,
    out: Tensor,
) -> None:
    """Draw the actor's channels for each UAV.

    Args:
        inputs: fields of `ActorInputs`.
        tables: fields of `ActorTables`.
        places: fields of `ActorPlaces`: slots in `out`; other channels of `out` are not written.
        cells: number of map cells, [R, C].
        has_inactive: whether UAVs may be inactive.
        out: output [E, N, channels, X, Y] of any precision, written.
    """
    *tensors, open_share = inputs
    check_contiguous(*tensors, *tables, open_share[0])
    sizes = Sizes.of(out, tables[0].shape[2], cells, has_inactive)
    arguments = ActorInputs(*inputs), ActorTables(*tables), open_share.stride(0), out
    channels = ActorPlaces(*places)
    launch("maps.draw_actor", _grid(out, sizes), *arguments, S=sizes, AT=channels, num_warps=4)


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
    """Draw the channels that only the critic sees; as `draw_actor_maps`, with critic tuples."""
    check_contiguous(*inputs, boxes)
    sizes = Sizes.of(out, boxes.shape[2], cells, has_inactive)
    constants = {"S": sizes, "AT": CriticPlaces(*places), "ACTIONS": num_actions}
    arguments = CriticInputs(*inputs), boxes, out
    launch("maps.draw_critic", _grid(out, sizes), *arguments, **constants, num_warps=4)


def _grid(out: Tensor, sizes: Sizes) -> tuple[int, int, int]:
    return len(out) * sizes.N, -(-sizes.X // ROWS), -(-sizes.Y // sizes.BLOCK_Y)


# Windows ----------------------------------------------------------------------------------


NEAR, FAR, STRETCHED = -1, 0, 1
"""How a window shows a map: the lattice around the UAV, or area means of FAR or STRETCHED."""


class Shown(NamedTuple):
    """How windows of k × k cells show lattice maps in C channels; see `observations.window`."""

    sources: Tensor
    """Map that a channel shows, [C] int64; -1 for a channel that is not written."""
    ways: Tensor
    """NEAR, FAR or STRETCHED, [C] int64."""
    numbers: Tensor
    """Factor of area means, largest value, and value beyond the lattice, [C, 3] float32."""
    rows: Tensor
    """Row weights of FAR and STRETCHED, [2, k, X] float32."""
    cols: Tensor
    """Column weights, [2, k, Y] float32."""
    outside: Tensor
    """Share of each FAR cell outside the area, [k, k] float32."""


ShownSizes = namedtuple("ShownSizes", "MAPS CHANNELS X Y K BLOCK")
"""Compile-time constants of `show`."""


@torch.library.custom_op("marl_framework::show_in_windows", mutates_args=("out",))
def show_in_windows(maps: Tensor, positions: Tensor, shown: list[Tensor], out: Tensor) -> None:
    """Show maps of the lattice in windows.

    Args:
        maps: maps of each UAV, [E, N, maps, X, Y] float32.
        positions: lattice indices, [E, N, 3] int64.
        shown: fields of `Shown`.
        out: windows [E, N, C, k, k] float32, written.
    """
    check_contiguous(maps, positions, *shown, out)
    (*lead, channels, k, _), (number, x, y) = out.shape, maps.shape[2:]
    sizes = ShownSizes(number, channels, x, y, k, max(16, block(k)))
    programs = lead[0] * lead[1], channels
    launch("maps.show", programs, maps, positions, Shown(*shown), out, S=sizes, num_warps=4)


# Symmetries -------------------------------------------------------------------------------


class Tables(NamedTuple):
    """Lookup tables of S symmetries, for maps of X × Y cells and for A actions."""

    cells: Tensor
    """Cell from which each turned cell is read, [S, X·Y] int64."""
    actions: Tensor
    """Action that each action becomes when turned, [S, A] int64."""
    sources: Tensor
    """Action that becomes each action when turned, [S, A] int64."""
    codes: Tensor
    """Turned map values that encode no action, then each action, [S, A + 1] float32."""


class Flown(NamedTuple):
    """Fields of M transitions, contiguous; see `algorithms.batch.Transitions`."""

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
    """Fields of B turned transitions, with all maps in one tensor."""

    maps: Tensor
    """[B, C_c, X, Y]."""
    actions: Tensor
    masks: Tensor
    old_probabilities: Tensor
    targets: Tensor


TurnedSizes = namedtuple("TurnedSizes", "CELLS SEEN OWN OTHERS A BLOCK_A")
"""Compile-time constants of `take`."""


@torch.library.custom_op("marl_framework::take_turned", mutates_args=())
def take_turned(
    index: Tensor, which: Tensor, tables: list[Tensor], flown: list[Tensor], map_of_actions: int
) -> list[Tensor]:
    """Gather transitions and apply one symmetry to each; return the fields of `Turned`.

    `index` selects transitions and `which` symmetries, both [B] int64; `tables` and `flown` are
    fields of `Tables` and `Flown`. `map_of_actions` is the critic map that shows actions, or -1.
    """
    check_contiguous(index, which, *tables, *flown)
    out, stored = _empty(index, flown), Flown(*flown)
    size = tables[0].shape[1]
    seen, own, a = (x.shape[1] for x in (stored.observations, stored.critic_maps, stored.masks))
    sizes = TurnedSizes(size, seen, own, map_of_actions, a, block(a))
    programs = len(index), -(-size // CELLS)
    tensors = index, which, Tables(*tables), stored, out
    launch("maps.take", programs, *tensors, S=sizes, num_warps=1)
    return list(out)


@take_turned.register_fake
def _(index: Tensor, which: Tensor, tables: Any, flown: list[Tensor], _: int) -> list[Tensor]:
    return list(_empty(index, flown))


def _empty(index: Tensor, tensors: list[Tensor]) -> Turned:
    flown, batch = Flown(*tensors), len(index)
    seen, own = flown.observations, flown.critic_maps
    maps = seen.new_empty(batch, seen.shape[1] + own.shape[1], *seen.shape[2:])
    return Turned(maps, *(field.new_empty(batch, *field.shape[1:]) for field in flown[2:]))
