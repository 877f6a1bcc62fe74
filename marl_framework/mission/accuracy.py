"""F1 score of a belief, for the region of interest (ROI) as the positive class."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from marl_framework.kernels.cells import INTEREST_ABOVE

CPU_CELLS, GPU_CELLS = 2**18, 2**26
"""Number of map cells processed at once; CPU_CELLS fit into CPU caches."""


def f1(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the F1 score of the ROI class, [E]; 0 if no cell is ROI and none is predicted.

    `belief` holds P(ROI) and `truth` marks the ROI, both [E, R, C]. A cell is predicted as ROI
    if its belief is above `cells.INTEREST_ABOVE`.
    """
    predicted = belief > INTEREST_ABOVE
    hits = count(predicted & truth).to(belief.dtype)
    total = count(predicted) + count(truth)
    return 2 * hits / total.clamp(min=1).to(belief.dtype)


def chunks(*maps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split maps [E, R, C] into batches of a few missions; yield a tuple for each batch."""
    cells = maps[0].shape[-2] * maps[0].shape[-1]
    size = max(1, (GPU_CELLS if maps[0].is_cuda else CPU_CELLS) // cells)
    return zip(*(batch.split(size) for batch in maps), strict=True)


def count(cells: Tensor) -> Tensor:
    """Return the number of True cells in masks [..., R, C]."""
    return cells.sum(dim=(-2, -1), dtype=torch.int32)  # faster than `count_nonzero`
