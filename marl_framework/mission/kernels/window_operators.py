"""The Triton loops over footprint windows as PyTorch operators; see `triton_windows`.

Operators of `torch.library`: the `meta` device, fake tensors and `torch.compile` see what they
write without running them. Tensors are contiguous and lie on one GPU, or on the CPU under Triton's
interpreter (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from marl_framework.device import launched_on
from marl_framework.mission.kernels import triton_windows

# Chosen by counting registers, once for all: kernels that try out several tiles can be neither
# recorded nor repeated. Under no limit the assembler spills a few registers to fit more warps.
TILE = {"BLOCK_R": 16, "BLOCK_C": 32}
OPTIONS = {"num_warps": 4, "maxnreg": 128}


@torch.library.custom_op(
    "marl_framework::read_windows", mutates_args=("readings", "pooled_readings")
)
def read_windows(
    truth: Tensor,
    bits: Tensor,
    flip_below: Tensor,
    boxes: Tensor,
    sides: Tensor,
    active: Tensor,
    readings: Tensor,
    pooled_readings: Tensor,
) -> None:
    """Take a reading at each UAV.

    Args:
        truth: [E, R, C] bool.
        bits: [E, N, K_x, K_y] int16, or keys that they are drawn from, [E] int64.
        flip_below: bits below this read wrongly, in cells not of interest and of interest,
            [E, N, 2] int16.
        boxes: see `Camera.boxes`, [E, N, 8] int64.
        sides: of the unclipped footprints [cells], [E, N, 2] int64.
        active: missions to touch, [E] bool.
        readings: [E, N, K_x, K_y] int8, written.
        pooled_readings: their area means over parts of the unclipped footprints, [E, N, X, Y],
            written.
    """
    check_contiguous(truth, bits, flip_below, boxes, sides, active, readings, pooled_readings)
    e, n, x, _ = pooled_readings.shape
    with launched_on(readings):
        triton_windows.read[(e * n * x,)](
            as_bytes(truth),
            bits,
            flip_below,
            boxes,
            sides,
            as_bytes(active),
            readings,
            pooled_readings,
            KEYS=bits.dtype == torch.int64,
            **_dimensions(truth, readings, pooled_readings),
            **OPTIONS,
        )


@torch.library.custom_op(
    "marl_framework::fuse_own", mutates_args=("beliefs", "pooled", "pooled_uncertainty")
)
def fuse_own(
    readings: Tensor,
    heard: Tensor,
    boxes: Tensor,
    odds: Tensor,
    active: Tensor,
    beliefs: Tensor,
    pooled: Tensor,
    pooled_uncertainty: Tensor,
    takes_own: bool,
    takes_heard: bool,
    tracks: bool,
    prior: float | None,
) -> None:
    """Update own beliefs with the own readings, then with those heard in order of ids.

    Args:
        readings: [E, N, K_x, K_y] int8.
        heard: whether i hears j, [E, N, N] bool; its diagonal does not matter.
        boxes: see `Camera.boxes`, [E, N, 8] int64.
        odds: what a positive and a negative reading multiply odds with, [E, N, 2].
        active: missions to touch, [E] bool.
        beliefs: [E, N, R, C], updated.
        pooled: area means of the beliefs [E, N, X, Y], updated.
        pooled_uncertainty: area means of their uncertainty [E, N, X, Y], updated.
        takes_own: whether to take the own readings.
        takes_heard: whether to take the readings heard.
        tracks: whether to update `pooled_uncertainty`.
        prior: what all cells are taken to hold before; beliefs are then not read, but written
            whole.
    """
    check_contiguous(readings, heard, boxes, odds, active, beliefs, pooled, pooled_uncertainty)
    _fuse(
        (readings, as_bytes(heard), boxes, odds, as_bytes(active)),
        (beliefs, pooled, pooled_uncertainty),
        {"TEAM": False, "OWN": takes_own, "HEARD": takes_heard, "TRACKS": tracks},
        prior,
    )


@torch.library.custom_op(
    "marl_framework::fuse_global", mutates_args=("belief", "pooled", "pooled_uncertainty")
)
def fuse_global(
    readings: Tensor,
    boxes: Tensor,
    odds: Tensor,
    active: Tensor,
    belief: Tensor,
    pooled: Tensor,
    pooled_uncertainty: Tensor,
    tracks: bool,
    prior: float | None,
) -> Tensor:
    """Update global beliefs with all readings, in order of ids.

    Args:
        readings: [E, N, K_x, K_y] int8.
        boxes: see `Camera.boxes`, [E, N, 8] int64.
        odds: what a positive and a negative reading multiply odds with, [E, N, 2].
        active: missions to touch, [E] bool.
        belief: [E, R, C], updated.
        pooled: its area means [E, X, Y], updated.
        pooled_uncertainty: area means of its uncertainty [E, X, Y], updated.
        tracks: whether to update `pooled_uncertainty`.
        prior: see `fuse_own`.

    Returns:
        The sums of `reward.changes`, [3, E] float64.
    """
    check_contiguous(readings, boxes, odds, active, belief, pooled, pooled_uncertainty)
    return _fuse(
        (readings, as_bytes(active), boxes, odds, as_bytes(active)),  # who is heard is not read
        (belief, pooled, pooled_uncertainty),
        {"TEAM": True, "OWN": True, "HEARD": True, "TRACKS": tracks},
        prior,
    )


@read_windows.register_fake
def _(*tensors: Tensor) -> None:
    """Nothing but the mutated arguments comes out."""


@fuse_own.register_fake
def _(*arguments: Any) -> None:
    """Nothing but the mutated arguments comes out."""


@fuse_global.register_fake
def _(readings: Tensor, *arguments: Any) -> Tensor:
    return readings.new_empty(3, readings.shape[0], dtype=torch.float64)


def _fuse(
    inputs: tuple[Tensor, ...],
    maps: tuple[Tensor, Tensor, Tensor],
    flags: dict[str, bool],
    prior: float | None,
) -> Tensor:
    """Launch `fuse` and `add_parts`; return the sums of the team, else nothing of use."""
    beliefs, pooled, pooled_uncertainty = maps
    readings, active = inputs[0], inputs[-1]
    e, x, y = len(active), *pooled.shape[-2:]
    per_mission = pooled[0].numel() // (x * y)
    parts, uncertainty_parts = pooled.new_empty(2, e, per_mission, x, 2, y)
    sums = pooled.new_empty(e, x, 3, dtype=torch.float64)
    totals = pooled.new_empty(3, e, dtype=torch.float64)
    dimensions = _dimensions(beliefs, readings, pooled)
    team, tracks = flags["TEAM"], flags["TRACKS"]
    with launched_on(beliefs):
        triton_windows.fuse[(e * per_mission * x,)](
            *inputs,
            beliefs,
            parts,
            uncertainty_parts,
            sums,
            0.5 if prior is None else prior,
            BLANK=prior is not None,
            **dimensions,
            **flags,
            FAST=beliefs.is_cuda,
            **OPTIONS,
        )
        triton_windows.add_parts[(e * per_mission,)](
            parts,
            uncertainty_parts,
            sums,
            pooled,
            pooled_uncertainty,
            totals,
            X=x,
            Y=y,
            TEAM=team,
            TRACKS=tracks,
            BLOCK_X=triton.next_power_of_2(x),
            BLOCK_Y=dimensions["BLOCK_Y"],
            **OPTIONS,
        )
    return totals


def _dimensions(maps: Tensor, readings: Tensor, pooled: Tensor) -> dict[str, int]:
    """Return the constants that kernels are compiled for."""
    n, kx, ky = readings.shape[1:]
    (r, c), (x, y) = maps.shape[-2:], pooled.shape[-2:]
    shape = {"R": r, "C": c, "X": x, "Y": y, "KX": kx, "KY": ky, "N": n}
    return {**shape, **TILE, "BLOCK_Y": triton.next_power_of_2(y)}


def as_bytes(tensor: Tensor) -> Tensor:
    """Return booleans as int8, on the same memory; other numbers as they are."""
    return tensor.view(torch.int8) if tensor.dtype == torch.bool else tensor


def check_contiguous(*tensors: Tensor) -> None:
    """Refuse tensors that kernels would read in another order."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("window kernels need contiguous tensors")
