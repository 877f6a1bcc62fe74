"""Terrains of at most four rectangles, or the complement of one, rasterised axis by axis."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.model import Config

# Columns of the draws: which side, corner, axis or diagonal; complement or not; shares of the
# axes that are covered.
_PLACE, _COMPLEMENT, _SHARES = 0, 1, 2
_NUM_DRAWS = 10

Shape = tuple[int, int]
Interval = Tensor
"""First cell and one past the last, [E, 2] int64."""


class Rectangles:
    """Base of the rectangular kinds, which share their draws.

    Args:
        config: gives the cells of the map.
        device: where draws and ground truths are.
        split: not used; splits differ by their seeds.
    """

    complemented = False
    """Whether every other map is the complement."""

    def __init__(self, config: Config, device: torch.device, split: str) -> None:
        self.shape = config.geometry.map_shape
        self.bytes_per_mission = 3 * self.shape[0] * self.shape[1]
        self._device = device

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw uniform numbers [num, 10] float64 in [0, 1)."""
        # Double precision, so that the floor of a share is the same on every device.
        size = (num, _NUM_DRAWS)
        return torch.rand(size, generator=generator, device=self._device, dtype=torch.float64)

    def build(self, draws: Tensor) -> Tensor:
        """Return the ground truths [num, R, C] bool."""
        complement = draws[:, _COMPLEMENT] >= 0.5 if self.complemented else None
        return rasterise(self.rectangles(draws), self.shape, complement)

    def rectangles(self, uniform: Tensor) -> Tensor:
        """Return the rectangles [E, K, 4] int64 of uniform numbers [E, 10]; see `rasterise`."""
        raise NotImplementedError


class Split(Rectangles):
    """One of four sides of the map, 30-60 % of it."""

    def rectangles(self, uniform: Tensor) -> Tensor:
        """See `Rectangles.rectangles`."""
        shape, side = self.shape, _pick(uniform[:, _PLACE], 4)
        share = _share(uniform, 0, 0.30, 0.60)
        along_x, far = (side < 2).unsqueeze(1), side % 2 == 1
        rows, cols = (_anchored(share, far, size) for size in shape)
        return _rectangles(
            (
                torch.where(along_x, rows, _whole(side, shape[0])),
                torch.where(along_x, _whole(side, shape[1]), cols),
            )
        )


class Corner(Rectangles):
    """One block in a corner, 55-74 % of each side."""

    def rectangles(self, uniform: Tensor) -> Tensor:
        """See `Rectangles.rectangles`."""
        corner = _pick(uniform[:, _PLACE], 4)
        share_x, share_y = _share(uniform, 0, 0.55, 0.74), _share(uniform, 1, 0.55, 0.74)
        return _rectangles(_block(share_x, share_y, corner >= 2, corner % 2 == 1, self.shape))


class Band(Rectangles):
    """A band across the map, from 20-34 % to 65-79 % of one axis, or all but that band."""

    complemented = True

    def rectangles(self, uniform: Tensor) -> Tensor:
        """See `Rectangles.rectangles`."""
        shape, axis = self.shape, _pick(uniform[:, _PLACE], 2)
        low, high = _share(uniform, 0, 0.20, 0.34), _share(uniform, 1, 0.65, 0.79)
        limits = torch.stack((low, high), -1)
        along_x = (axis == 0).unsqueeze(1)
        rows, cols = ((limits * size).floor().long() for size in shape)
        return _rectangles(
            (
                torch.where(along_x, rows, _whole(axis, shape[0])),
                torch.where(along_x, _whole(axis, shape[1]), cols),
            )
        )


class TwoCorners(Rectangles):
    """Two blocks in opposite corners, 40-54 % of each side, each with its own extent."""

    def rectangles(self, uniform: Tensor) -> Tensor:
        """See `Rectangles.rectangles`."""
        diagonal = _pick(uniform[:, _PLACE], 2) == 1
        share = [_share(uniform, k, 0.40, 0.54) for k in range(4)]
        near, far = torch.zeros_like(diagonal), torch.ones_like(diagonal)
        return _rectangles(
            _block(share[0], share[1], near, diagonal, self.shape),
            _block(share[2], share[3], far, ~diagonal, self.shape),
        )


class FourCorners(Rectangles):
    """A block in each corner, 28-37 % of each side, each with its own extent; or all but them."""

    complemented = True

    def rectangles(self, uniform: Tensor) -> Tensor:
        """See `Rectangles.rectangles`."""
        share = [_share(uniform, k, 0.28, 0.37) for k in range(8)]
        near = torch.zeros_like(share[0], dtype=torch.bool)
        ends = [(x, y) for x in (near, ~near) for y in (near, ~near)]
        return _rectangles(
            *(
                _block(share[2 * k], share[2 * k + 1], x, y, self.shape)
                for k, (x, y) in enumerate(ends)
            )
        )


def rasterise(rectangles: Tensor, shape: Shape, complement: Tensor | None = None) -> Tensor:
    """Draw unions of rectangles, or their complements.

    Args:
        rectangles: [E, K, 4] int64, K ≤ 8; of each first row, past-the-last row, first column,
            past-the-last column [cells]. A rectangle without extent is empty.
        shape: (R, C).
        complement: [E] bool, the maps to invert.

    Returns:
        [E, R, C] bool.
    """
    rows = _membership(rectangles[..., :2], shape[0])
    cols = _membership(rectangles[..., 2:], shape[1])
    union = rows[:, :, None] & cols[:, None, :]
    if rectangles.shape[1] > 1:
        # In place on bytes: comparisons from bytes to bool are ten times slower on the CPU.
        union.ne_(0)
    if complement is not None:
        union ^= complement.to(torch.uint8)[:, None, None]
    return union.view(torch.bool)


def _membership(interval: Tensor, size: int) -> Tensor:
    """Return [E, size] uint8 of intervals [E, K, 2]: bit k is set inside interval k."""
    cell = torch.arange(size, device=interval.device)
    inside = (cell >= interval[..., :1]) & (cell < interval[..., 1:])
    bit = torch.arange(interval.shape[1], device=interval.device, dtype=torch.uint8)
    return (inside.to(torch.uint8) << bit.unsqueeze(1)).sum(1, dtype=torch.uint8)


def _pick(uniform: Tensor, num: int) -> Tensor:
    return (uniform * num).long()


def _share(uniform: Tensor, index: int, low: float, high: float) -> Tensor:
    return low + (high - low) * uniform[:, _SHARES + index]


def _whole(like: Tensor, size: int) -> Interval:
    return torch.stack((torch.zeros_like(like), torch.full_like(like, size)), -1)


def _anchored(share: Tensor, far: Tensor, size: int) -> Interval:
    """Return ⌊share · size⌋ cells at the near or far end of an axis."""
    length = (share * size).floor().long()
    start = torch.where(far, size - length, torch.zeros_like(length))
    return torch.stack((start, start + length), -1)


def _block(
    share_x: Tensor, share_y: Tensor, far_x: Tensor, far_y: Tensor, shape: Shape
) -> tuple[Interval, Interval]:
    return _anchored(share_x, far_x, shape[0]), _anchored(share_y, far_y, shape[1])


def _rectangles(*sides: tuple[Interval, Interval]) -> Tensor:
    """Join the rows and columns of K rectangles: [E, K, 4]."""
    return torch.stack([torch.cat(side, -1) for side in sides], 1)
