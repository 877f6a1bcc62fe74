"""Convolutions without padding, with ReLU, computed in the way that is fastest on a machine.

On GPUs a kernel as large as its input is a linear layer: as a convolution, the gradient of that
input would take kx · ky times as many operations. On CPUs convolutions train at half the rate of
matrix products or less. All ways have the same parameters and equal each other up to rounding.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from marl_framework.device import has_slow_products
from marl_framework.kernels.layers import convolve

_ROWS = 2048  # patches that are made at once
_SPREAD = 256  # cells of the largest map whose gradient is a product
_LEAST = 2**14  # weights of a layer for which another way is worth it
_unrectify = torch.ops.aten.threshold_backward  # gradient of ReLU


class Way(Enum):
    """How a convolution is computed."""

    CONVOLUTION = "convolution"
    CHANNELS_LAST = "channels_last"
    """Convolution of maps whose channels come last in memory."""
    PRODUCT = "product"
    """Product of patches and weights."""


class Convolution(nn.Conv2d):
    """A convolution followed by ReLU; no padding, stride or groups.

    Attributes:
        way: how it is computed; set by `use`.
        fuses: whether a GPU adds the bias and applies the ReLU with one kernel, in half precision.
    """

    way = Way.CONVOLUTION
    fuses = False

    def use(self, way: Way) -> None:
        """Set the way, and store the weights in its order."""
        self.way = way
        last = way is not Way.CONVOLUTION
        order = torch.channels_last if last else torch.contiguous_format
        self.weight.data = self.weight.data.contiguous(memory_format=order)

    def forward(self, maps: Tensor) -> Tensor:
        """Map [B, C, X, Y] to [B, out_channels, X - kx + 1, Y - ky + 1], none of it below 0."""
        assert self.bias is not None
        if self.way is not Way.PRODUCT:
            if is_linear(maps, self.weight):
                return as_linear(maps, self.weight, self.bias).relu()
            if self.fuses and (dtype := self.weight.dtype) != torch.float32:
                outputs: Tensor = convolve(maps.to(dtype), self.weight, self.bias)
                return outputs
            return super().forward(maps).relu()
        mixed = maps.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if mixed else self.weight.dtype
        if covers(self.weight, maps):
            return as_linear(maps.to(dtype), self.weight.to(dtype), self.bias).relu()
        outputs = _Product.apply(maps, self.weight, self.bias, dtype)
        return outputs


def covers(weight: Tensor, maps: Tensor) -> bool:
    """Return whether a kernel [O, C, kx, ky] is as large as the maps [B, C, X, Y]."""
    return weight.shape[2:] == maps.shape[2:]


def is_linear(maps: Tensor, weight: Tensor) -> bool:
    """Return whether a convolution of maps is computed by `as_linear`."""
    return maps.device.type == "cuda" and covers(weight, maps)


def as_linear(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a kernel as large as its input as a linear layer, in the weights' memory order.

    `maps` are [B, C, X, Y], `weight` is [O, C, X, Y] and `bias` [O]. Returns [B, O, 1, 1].
    """
    if weight.is_contiguous(memory_format=torch.channels_last):
        maps, weight = (tensor.permute(0, 2, 3, 1) for tensor in (maps, weight))
    return linear(maps.flatten(1), weight.flatten(1), bias)[..., None, None]


class _Product(torch.autograd.Function):
    """Convolution of [B, C, X, Y] with [O, C, kx, ky] in `dtype`, and ReLU, by products of patches.

    Gradients have the precision of their inputs; those of weights are summed in it.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        rows, kernel = (t.permute(0, 2, 3, 1).to(dtype).contiguous() for t in (maps, weight))
        outputs = rows.new_empty(*_places(rows, kernel), len(kernel))
        flat, bias = kernel.flatten(1).t(), bias.to(dtype)
        size = _samples_at_once(rows, kernel)
        for part, out in zip(rows.split(size), outputs.split(size), strict=True):
            torch.addmm(bias, _patches(part, kernel), flat, out=out.view(-1, len(kernel))).relu_()
        ctx.save_for_backward(rows, kernel, outputs)
        ctx.dtypes = maps.dtype, weight.dtype
        return outputs.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, kernel, outputs = ctx.saved_tensors
        of_maps, of_weight = ctx.dtypes
        gradient = _unrectify(gradients[0].permute(0, 2, 3, 1), outputs, 0).contiguous()
        flat, size = kernel.flatten(1), _samples_at_once(rows, kernel)
        to_weight = torch.zeros_like(flat, dtype=of_weight)
        to_rows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            wanted = gradient[start : start + size].view(-1, len(kernel))
            to_weight += wanted.t() @ _patches(part, kernel)
            if to_rows is not None:
                to_rows[start : start + size] = _sum_patches(wanted @ flat, part, kernel)
        ones = gradient.new_ones(1, gradient[..., 0].numel())
        return (
            None if to_rows is None else to_rows.permute(0, 3, 1, 2).to(of_maps),
            to_weight.view_as(kernel).permute(0, 3, 1, 2),
            (ones @ gradient.flatten(0, 2))[0].to(of_weight),  # a product is faster than a sum
            None,
        )


def _places(rows: Tensor, weight: Tensor) -> tuple[int, int, int]:
    """Return the number of samples, and of positions of the kernel along both axes."""
    samples, x, y, _ = rows.shape
    _, kx, ky, _ = weight.shape
    return samples, x - kx + 1, y - ky + 1


def _samples_at_once(rows: Tensor, weight: Tensor) -> int:
    """Return the number of samples whose patches are made at once."""
    _, x, y = _places(rows, weight)
    return max(1, _ROWS // (x * y))


def _patches(rows: Tensor, weight: Tensor) -> Tensor:
    """Copy the patches of [B, X, Y, C] under each position of the kernel; [B·x·y, kx·ky·C]."""
    samples, x, y = _places(rows, weight)
    _, kx, ky, channels = weight.shape
    strides = (*rows.stride()[:3], rows.stride(1), 1)
    patches = rows.as_strided((samples, x, y, kx, ky * channels), strides, rows.storage_offset())
    return patches.reshape(-1, kx * ky * channels)


def _sum_patches(patches: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Add patches [B·x·y, kx·ky·C] at their places in maps like `rows`, [B, X, Y, C]."""
    (samples, x, y), (_, kx, ky, channels) = _places(rows, weight), weight.shape
    if (cells := rows[0, ..., 0].numel()) <= _SPREAD:
        cell = torch.arange(cells, device=rows.device).view(rows.shape[1:3])
        place = (cell[:x, :y, None, None] + cell[:kx, :ky]).flatten()
        spread = (cell.view(-1, 1) == place).to(patches.dtype)
        return (spread @ patches.view(samples, -1, channels)).view_as(rows)
    parts = patches.view(samples, x, y, kx, ky, channels)
    sums = torch.zeros_like(rows, dtype=torch.promote_types(rows.dtype, torch.float32))
    for i in range(kx):
        for j in range(ky):
            sums[:, i : i + x, j : j + y] += parts[:, :, :, i, j]
    return sums.to(rows.dtype)


def convolutions(network: nn.Module) -> list[Convolution]:
    """Return the layers of a network whose way can be chosen."""
    return [layer for layer in network.modules() if isinstance(layer, Convolution)]


def use_ways(network: nn.Module, choice: str, half: bool) -> None:
    """Set how each layer is computed on a CPU; `choice` is `compute.convolutions`.

    With `auto` layers are products. In float32 the first layer has its channels last, and all but
    the last where `has_slow_products`. Small layers stay convolutions.
    """
    layers, convolved = convolutions(network), 0
    if not half:
        convolved = max(1, len(layers) - 1) if has_slow_products() else 1
    for index, layer in enumerate(layers):
        if choice != "auto":
            layer.use(Way(choice))
        elif layer.weight.numel() >= _LEAST:
            layer.use(Way.CHANNELS_LAST if index < convolved else Way.PRODUCT)
