"""Terrains of up to four rectangles, or the complement, rasterised axis by axis."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from marl_framework.config.model import Config

# Columns of the draws: choice of side, corner, axis or diagonal; complement or not; shares.
_PLACE, _COMPLEMENT, _SHARES, _NUM_DRAWS = 0, 1, 2, 10


class Rectangles:
    """Base class of the rectangular terrain kinds; all use the same draws."""

    complemented = False
    """Whether half of the maps are complemented."""

    def __init__(self, config: Config, device: torch.device, split: str) -> None:
        self.shape = config.geometry.map_shape
        self.bytes_per_mission = 3 * self.shape[0] * self.shape[1]
        self._device = device

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw uniform numbers [num, 10] float64 in [0, 1)."""
        # float64, so that floors of shares are equal on all devices.
        size = (num, _NUM_DRAWS)
        return torch.rand(size, generator=generator, device=self._device, dtype=torch.float64)

    def build(self, draws: Tensor) -> Tensor:
        """Return the ground truths [num, R, C] bool."""
        complement = draws[:, _COMPLEMENT] >= 0.5 if self.complemented else None
        return rasterise(self._rectangles(draws), self.shape, complement)

    def _rectangles(self, uniform: Tensor) -> Tensor:
        """Return the rectangles, [E, K, 4] int64, for uniform draws [E, 10]; see `rasterise`."""
        raise NotImplementedError

    def _block(self, shares: tuple[Tensor, Tensor], far_x: Tensor, far_y: Tensor) -> Tensor:
        """Return a block in a corner, [E, 4], that covers `shares` of both axes."""
        rows = _anchored(shares[0], far_x, self.shape[0])
        cols = _anchored(shares[1], far_y, self.shape[1])
        return torch.stack((*rows, *cols), -1)


class Split(Rectangles):
    """A strip along one of the map's four sides, 30-60 % wide."""

    def _rectangles(self, uniform: Tensor) -> Tensor:
        side, share = _pick(uniform, 4), _share(uniform, 0, 0.30, 0.60)
        shares = torch.where(side < 2, share, 1.0), torch.where(side < 2, 1.0, share)
        return self._block(shares, side % 2 == 1, side % 2 == 1).unsqueeze(1)


class Corner(Rectangles):
    """A block in one corner, 55-74 % of each side."""

    def _rectangles(self, uniform: Tensor) -> Tensor:
        corner = _pick(uniform, 4)
        shares = _share(uniform, 0, 0.55, 0.74), _share(uniform, 1, 0.55, 0.74)
        return self._block(shares, corner >= 2, corner % 2 == 1).unsqueeze(1)


class Band(Rectangles):
    """A band across the map, from 20-34 % to 65-79 % of one axis, or the complement."""

    complemented = True

    def _rectangles(self, uniform: Tensor) -> Tensor:
        low, high = _share(uniform, 0, 0.20, 0.34), _share(uniform, 1, 0.65, 0.79)
        along_x = _pick(uniform, 2) == 0
        edges = [
            (torch.where(across, share, whole) * size).floor().long()
            for across, size in zip((along_x, ~along_x), self.shape, strict=True)
            for share, whole in ((low, 0.0), (high, 1.0))
        ]
        return torch.stack(edges, -1).unsqueeze(1)


class TwoCorners(Rectangles):
    """Two blocks in opposite corners, 40-54 % of each side, of separate extents."""

    def _rectangles(self, uniform: Tensor) -> Tensor:
        diagonal = _pick(uniform, 2) == 1
        near = torch.zeros_like(diagonal)
        a, b, c, d = (_share(uniform, k, 0.40, 0.54) for k in range(4))
        blocks = self._block((a, b), near, diagonal), self._block((c, d), ~near, ~diagonal)
        return torch.stack(blocks, 1)


class FourCorners(Rectangles):
    """A block in each corner, 28-37 % of each side, of separate extents, or the complement."""

    complemented = True

    def _rectangles(self, uniform: Tensor) -> Tensor:
        share = [_share(uniform, k, 0.28, 0.37) for k in range(8)]
        near = torch.zeros_like(share[0], dtype=torch.bool)
        blocks = [
            self._block((share[2 * k], share[2 * k + 1]), x, y)
            for k, (x, y) in enumerate(product((near, ~near), repeat=2))
        ]
        return torch.stack(blocks, 1)


def rasterise(
    rectangles: Tensor, shape: tuple[int, int], complement: Tensor | None = None
) -> Tensor:
    """Draw unions of rectangles, or their complements.

    `rectangles` are first row, one past the last row, first column and one past the last column
    [cells], [E, K, 4] int64, K ≤ 8; those without extent are empty. `shape` is (R, C). The maps in
    `complement` are inverted, [E] bool; None for no map. Returns [E, R, C] bool.
    """
    rows = _membership(rectangles[..., :2], shape[0])
    cols = _membership(rectangles[..., 2:], shape[1])
    union = rows[:, :, None] & cols[:, None, :]
    if rectangles.shape[1] > 1:
        # In place on bytes: on the CPU, comparisons that return bool are ten times slower.
        union.ne_(0)
    if complement is not None:
        union ^= complement.to(torch.uint8)[:, None, None]
    return union.view(torch.bool)


def _membership(interval: Tensor, size: int) -> Tensor:
    """Return membership bits of cells, [E, size] uint8: bit k is set inside interval k."""
    cell = torch.arange(size, device=interval.device)
    inside = (cell >= interval[..., :1]) & (cell < interval[..., 1:])
    bit = torch.arange(interval.shape[1], device=interval.device, dtype=torch.uint8)
    return (inside.to(torch.uint8) << bit.unsqueeze(1)).sum(1, dtype=torch.uint8)


def _pick(uniform: Tensor, num: int) -> Tensor:
    return (uniform[:, _PLACE] * num).long()


def _share(uniform: Tensor, index: int, low: float, high: float) -> Tensor:
    return low + (high - low) * uniform[:, _SHARES + index]


def _anchored(share: Tensor, far: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the first cell and one past the last of ⌊share · size⌋ at an end of an axis, [E]."""
    length = (share * size).floor().long()
    start = torch.where(far, size - length, 0)
    return start, start + length
