"""Readings as cells of a footprint, as messages carry them, and as map windows, as kernels do."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.flying.messages import Bits, Place
from marl_framework.mission.camera import Camera


def cut(camera: Camera, place: Place, window: Tensor) -> Bits:
    """Return the cells of the footprint in a window [K_x, K_y] of readings; see `Reading.bits`."""
    rows, cols = _inside(camera, place)
    cells: Bits = (window[rows, cols] > 0).cpu().numpy()
    return cells


def lay(camera: Camera, place: Place, bits: Bits) -> Tensor:
    """Return a reading in its map window: +1, -1, or 0 outside the footprint, [K_x, K_y] int8.

    It must fit the footprint, see `fits`; without a frame all cells are 0.
    """
    window = torch.zeros(camera.window, dtype=torch.int8)
    if bits.size:
        rows, cols = _inside(camera, place)
        window[rows, cols] = torch.from_numpy(bits).to(torch.int8) * 2 - 1
    return window.to(camera.odds.device)


def fits(camera: Camera, place: Place, bits: Bits) -> bool:
    """Return whether a reading has the footprint's shape, or is empty."""
    rows, cols = _inside(camera, place)
    return bits.shape in ((0, 0), (rows.stop - rows.start, cols.stop - cols.start))


def _inside(camera: Camera, place: Place) -> tuple[slice, slice]:
    """Return the rows and columns of the window that lie in the footprint."""
    row0, row1, col0, col1, row, col, *_ = camera.box_table[place].tolist()
    return slice(row0 - row, row1 - row), slice(col0 - col, col1 - col)
