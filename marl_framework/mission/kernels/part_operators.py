"""The Triton kernel of sums over parts of the map as a PyTorch operator; see `triton_parts`."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.device import launched_on
from marl_framework.mission.kernels import triton_parts

# A warp for a row of parts: its sums need no barrier.
OPTIONS = {"BLOCK_R": 16, "BLOCK_C": 16, "num_warps": 1}


@torch.library.custom_op("marl_framework::sum_parts", mutates_args=())
def sum_parts(beliefs: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """Return sums of p, H(p) and p·H(p) over parts of maps, [M, 3, P, Q].

    Args:
        beliefs: probabilities p, [M, R, C], contiguous.
        row_ends: the row after the last one of each part, [P] int64.
        col_ends: the same for columns, [Q].
    """
    if not beliefs.is_contiguous():
        raise ValueError("sums over parts need contiguous maps")
    sums = _empty(beliefs, row_ends, col_ends)
    with launched_on(beliefs):
        triton_parts.sum_parts[(len(beliefs) * len(row_ends),)](
            beliefs,
            row_ends,
            col_ends,
            sums,
            *beliefs.shape[1:],
            *sums.shape[2:],
            FAST=beliefs.is_cuda,
            **OPTIONS,
        )
    return sums


@sum_parts.register_fake
def _empty(beliefs: Tensor, row_ends: Tensor, col_ends: Tensor) -> Tensor:
    """Return memory for the sums."""
    return beliefs.new_empty(len(beliefs), 3, len(row_ends), len(col_ends))
