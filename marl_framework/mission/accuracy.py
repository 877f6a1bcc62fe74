"""F1 score of a belief for the region of interest."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from marl_framework.kernels.cells import INTEREST_ABOVE

CPU_CELLS, GPU_CELLS = 2**18, 2**26
"""Number of map cells processed at once; on a CPU they fit its caches."""


def f1(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the F1 score of the ROI class, [E]; 0 if no cell is ROI and none is predicted.

    `belief` holds P(ROI), `truth` the ROI, both [E, R, C]; cells above `cells.INTEREST_ABOVE` are
    predicted as ROI.
    """
    predicted = belief > INTEREST_ABOVE
    hits = count(predicted & truth).to(belief.dtype)
    total = count(predicted) + count(truth)
    return 2 * hits / total.clamp(min=1).to(belief.dtype)


def chunks(*maps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield maps [E, R, C] of a few missions at a time."""
    cells = maps[0].shape[-2] * maps[0].shape[-1]
    size = max(1, (GPU_CELLS if maps[0].is_cuda else CPU_CELLS) // cells)
    return zip(*(each.split(size) for each in maps), strict=True)


def count(cells: Tensor) -> Tensor:
    """Return the number of cells in masks [..., R, C]."""
    return cells.count_nonzero(dim=(-2, -1))
