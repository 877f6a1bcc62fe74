"""Contract of sums of beliefs and their entropy over parts of the map."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.device import launched_on
from marl_framework.kernels.versions import Kernel, Version, check_contiguous, load

KERNELS = {
    "sum_parts": Kernel(
        "observations.lattice_view.LatticeView.entropy_maps",
        "sum_parts sum_parts_in_parallel",
        "sum_parts",
    )
}


def part_sums(version: Version, beliefs: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """Return sums of p, H(p) and p·H(p) over parts of maps, [..., 3, P, Q].

    Args:
        version: compiled loops or Triton.
        beliefs: probabilities p, [..., R, C].
        row_ends: the row after the last one of each part, [P] int64.
        col_ends: the same for columns, [Q].
    """
    maps = beliefs.flatten(0, -3).contiguous()
    sums = sum_parts if version is Version.TRITON else load("parts", version).part_sums
    found: Tensor = sums(maps, row_ends, col_ends)
    return found.unflatten(0, beliefs.shape[:-2])


@torch.library.custom_op("marl_framework::sum_parts", mutates_args=())
def sum_parts(maps: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """See `part_sums`; of maps [M, R, C]."""
    check_contiguous(maps)
    sums = _empty(maps, row_ends, col_ends)
    with launched_on(maps):
        load("parts", Version.TRITON).sum_parts[(len(maps) * len(row_ends),)](
            maps,
            row_ends,
            col_ends,
            sums,
            *maps.shape[1:],
            *sums.shape[2:],
            FAST=maps.is_cuda,
            BLOCK_R=16,
            BLOCK_C=16,
            num_warps=1,  # for a row of parts: its sums need no barrier
        )
    return sums


@sum_parts.register_fake
def _empty(maps: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """Return memory for the sums."""
    return maps.new_empty(len(maps), 3, len(row_ends), len(col_ends))
