"""Terrains from windows of a measured map, resampled to map cells on the device."""

from __future__ import annotations

import math

import torch
from kornia.geometry.transform import remap
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels.cells import grid_coordinates
from marl_framework.mission.terrains.raster_file import find_windows

WINDOW, SYMMETRY = 0, 1
"""Column indices of the draws."""


class RasterTerrain:
    """Windows from one split of a measured map, cut at a threshold.

    Attributes:
        num_windows: number of windows to choose from, x_dim × y_dim metres each.
        num_symmetries: number of symmetries that preserve the window's shape; quarter turns
            require square windows.
        place: location of the whole map; None if the file has no location.
        extent: size of the split's part of the map along x and y [m].
    """

    def __init__(self, config: Config, device: torch.device, split: str) -> None:
        windows = find_windows(config, split)
        self._shape = config.geometry.map_shape
        self._threshold = config.sensor.simulation.raster.threshold
        self.num_windows = len(windows.corners)
        self.num_symmetries = 8 if config.environment.x_dim == config.environment.y_dim else 4
        self._device, self.place = device, windows.place
        self._side, self._pixels = windows.side, windows.pixels
        self.bytes_per_mission = 30 * max(math.prod(self._shape), math.prod(windows.pixels))
        self._metres = config.environment.x_dim / windows.side[0]
        x, y = windows.values.shape
        self.extent = (x * self._metres, y * self._metres)
        self._values = torch.from_numpy(windows.values).to(device)
        self._corners = torch.from_numpy(windows.corners).to(device)

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw a window index and a symmetry (see `orient`) per mission, [num, 2] int64."""
        columns = [
            torch.randint(high, (num,), generator=generator, device=self._device)
            for high in (self.num_windows, self.num_symmetries)
        ]
        return torch.stack(columns, 1)

    def origins(self, draws: Tensor) -> Tensor:
        """Return the lower left corner of each window in the split's part [m], [E, 2] float64."""
        return self._corners[draws[:, WINDOW]].double() * self._metres

    def windows(self, draws: Tensor) -> Tensor:
        """Return the values of each window, resampled to map cells, [E, R, C] float32."""
        corner = self._corners[draws[:, WINDOW]]
        rows = corner[:, 0, None] + torch.arange(self._pixels[0], device=corner.device)
        cols = corner[:, 1, None] + torch.arange(self._pixels[1], device=corner.device)
        pixels = orient(self._values[rows[:, :, None], cols[:, None, :]], draws[:, SYMMETRY])
        return upsample(pixels, self._side, self._shape)

    def build(self, draws: Tensor) -> Tensor:
        """Return the cells above the threshold, [E, R, C] bool."""
        return above(self.windows(draws), self._threshold)


def above(values: Tensor, threshold: float | str) -> Tensor:
    """Return which cells exceed a value, or a percentile of their map such as p60, [E, R, C]."""
    if isinstance(threshold, str):
        return values > percentile(values, float(threshold[1:]))
    return values > threshold


def orient(pixels: Tensor, symmetry: Tensor) -> Tensor:
    """Flip and turn windows [E, P, Q] as encoded in the bits of `symmetry`, [E] int64.

    Bit 2 swaps x and y (square windows only), then bit 0 flips x, then bit 1 flips y. Thus 3 is a
    half turn, and 5 and 6 are quarter turns.
    """
    swap, flip_x, flip_y = (((symmetry >> bit) & 1 == 1)[:, None, None] for bit in (2, 0, 1))
    if pixels.shape[-2] == pixels.shape[-1]:
        pixels = torch.where(swap, pixels.mT, pixels)
    pixels = torch.where(flip_x, pixels.flip(-2), pixels)
    return torch.where(flip_y, pixels.flip(-1), pixels)


def upsample(pixels: Tensor, side: tuple[float, float], shape: tuple[int, int]) -> Tensor:
    """Resample windows [E, P, Q] bilinearly to the cells of the map, [E, R, C] float32.

    Values belong to the centres of pixels and cells: cell r of R reads the window at
    (r + 0.5) · side / R - 0.5 pixels, as OpenCV's INTER_LINEAR. Beyond the outermost centres, the
    border value is used. A window of R × C whole pixels is unchanged.

    `side` is the extent of the window [pixels] from the edge of pixel 0; it may be fractional.
    """

    def centres(axis: int) -> Tensor:
        cell = torch.arange(shape[axis], device=pixels.device, dtype=torch.float64)
        centre = (cell + 0.5) * (side[axis] / shape[axis]) - 0.5
        size = pixels.shape[axis - 2]
        return grid_coordinates(centre.clamp(0, size - 1), size)

    # float32 is off by 1e-5 pixels, which can flip a cell at the threshold.
    values = remap(
        pixels.double()[:, None],
        map_x=centres(1).expand(1, *shape),  # kornia's x is the last axis, our y
        map_y=centres(0)[:, None].expand(1, *shape),
        mode="bilinear",
        padding_mode="border",
        align_corners=True,
        normalized_coordinates=True,
    )
    return values[:, 0].float()


def percentile(values: Tensor, percent: float) -> Tensor:
    """Return the largest value in each map [E, R, C] that is not above the percentile, [E, 1, 1].

    `values > percentile(values, p)` marks the same cells as numpy's interpolated percentile, for p
    in (0, 100). `torch.quantile` rejects large inputs; CUDA's `torch.kthvalue` is nondeterministic.
    """
    flat = values.flatten(1)
    num = flat.shape[1]
    rank = math.floor(percent * (num - 1) / 100 + 1e-9) + 1  # from 1, the lowest value
    if 2 * rank > num:
        order = flat.topk(num - rank + 1, dim=1, sorted=False).values.amin(1)
    else:
        order = flat.topk(rank, dim=1, largest=False, sorted=False).values.amax(1)
    return order[:, None, None]
