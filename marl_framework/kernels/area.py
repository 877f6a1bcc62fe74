"""Contract of area means: averages over equal shares of a map, exact at fractional cells.

They equal those of OpenCV's `INTER_AREA` where it shrinks. The windows of
`kornia.geometry.transform.resize(interpolation="area")` end at whole cells: at 493 → 11 its error
is up to 2e-2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.kernels.versions import Kernel

KERNELS = {"area_pool": Kernel("kernels.area.area_pool", "pool_row", "share_of pool_columns")}


def interval_overlap(low: Tensor, high: Tensor, start: float | Tensor, width: Tensor) -> Tensor:
    """Return the share of the interval [start, start + width) that [low, high) covers."""
    return (torch.minimum(high, start + width) - torch.maximum(low, torch.as_tensor(start))).clamp(
        min=0
    ) / width


def covered(low: Tensor, high: Tensor, cells: int, outputs: int) -> Tensor:
    """Return the shares of equal parts of an axis that intervals cover, [..., outputs, S] float32.

    Args:
        low: first cell of each of S intervals, [..., S].
        high: one past the last cell.
        cells: number of cells of the axis.
        outputs: number of parts.
    """
    width = torch.full((), cells / outputs, dtype=torch.float32, device=low.device)
    start = torch.arange(outputs, device=low.device).unsqueeze(1) * width
    first, last = (bound.unsqueeze(-2).to(width.dtype) for bound in (low, high))
    return interval_overlap(first, last, start, width)


def area_weights(cells: int, outputs: int) -> Tensor:
    """Return the matrix [outputs, cells] float64 that averages `cells` cells onto `outputs`."""
    edges = torch.arange(cells, dtype=torch.float64)
    width = torch.tensor(cells / outputs, dtype=torch.float64)
    start = torch.arange(outputs, dtype=torch.float64).unsqueeze(1) * width
    return interval_overlap(edges, edges + 1, start, width)


def lattice_weights(
    map_shape: tuple[int, int], shape: tuple[int, int], device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return the weights that `area_pool` averages whole maps (R, C) onto (X, Y) with, float32."""
    rows, cols = (
        area_weights(cells, outputs).float().to(device)
        for cells, outputs in zip(map_shape, shape, strict=True)
    )
    return rows, cols


def area_pool(maps: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """Average maps [..., R, C] with row weights [..., X, R] and column weights [..., Y, C]."""
    return rows @ maps @ cols.mT


def grid_coordinates(index: Tensor, size: int) -> Tensor:
    """Return indices along an axis of `size` cells as `grid_sample` takes them, corners aligned.

    kornia's own conversion copies its factors from the host, which CUDA graphs cannot record.
    """
    return index if size == 1 else index * (2.0 / (size - 1.0)) - 1.0
