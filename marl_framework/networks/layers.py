"""Convolutions without padding, computed in the way that is fastest on a machine.

On GPUs a kernel as large as its input is a linear layer: as a convolution, the gradient of that
input would take kx · ky times as many operations. On CPUs convolutions train in bfloat16 at half
the rate of matrix products or less, and some float32 convolutions are faster with channels last.
All ways have the same parameters and equal each other up to rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from marl_framework.config.learning import ComputeConfig
from marl_framework.config.model import NetworkSizes
from marl_framework.device import autocast

_AUTO = "auto"

_ROWS = 32  # samples whose patches stay in the cache
_SAMPLES = 64  # samples of a measurement
_LEAST = 2**15  # weights of a layer that is worth a measurement
_TRIES = 7
_GAIN = 0.95  # share of the convolution's time that another way must not exceed


class Way(Enum):
    """How a convolution is computed."""

    CONVOLUTION = "convolution"
    CHANNELS_LAST = "channels_last"
    """Convolution of maps whose channels come last in memory."""
    PRODUCT = "product"
    """Product of patches and weights."""


class Convolution(nn.Conv2d):
    """A convolution without padding, stride and groups.

    Attributes:
        way: how it is computed; set by `use`.
    """

    way = Way.CONVOLUTION

    def use(self, way: Way) -> None:
        """Set the way, and store the weights in its order."""
        self.way = way
        last = way is not Way.CONVOLUTION
        order = torch.channels_last if last else torch.contiguous_format
        self.weight.data = self.weight.data.contiguous(memory_format=order)

    def forward(self, maps: Tensor) -> Tensor:
        """Map [B, C, X, Y] to [B, out_channels, X - kx + 1, Y - ky + 1]."""
        if self.way is not Way.PRODUCT:
            if is_linear(maps, self.weight):
                return as_linear(maps, self.weight, self.bias)
            return super().forward(maps)
        mixed = maps.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if mixed else self.weight.dtype
        assert self.bias is not None
        if covers(self.weight, maps):
            return as_linear(maps.to(dtype), self.weight.to(dtype), self.bias)
        rows, weight = (t.permute(0, 2, 3, 1).to(dtype) for t in (maps, self.weight))
        outputs: Tensor = _Product.apply(
            rows.contiguous(), weight.contiguous(), self.bias.to(dtype)
        )
        return outputs.permute(0, 3, 1, 2)


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
    """Products of patches of [B, X, Y, C] with weights [O, kx, ky, C]; returns [B, x, y, O]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        shape = _places(rows, weight)
        outputs = rows.new_empty(*shape, len(weight))
        flat = weight.flatten(1).t()
        for part, out in zip(rows.split(_ROWS), outputs.split(_ROWS), strict=True):
            torch.addmm(bias, _patches(part, weight), flat, out=out.view(-1, len(weight)))
        ctx.save_for_backward(rows, weight)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        (_, x, y), (_, kx, ky, channels) = _places(rows, weight), weight.shape
        flat = weight.flatten(1)
        exact = torch.promote_types(weight.dtype, torch.float32)  # of sums over batch and patches
        to_weight = torch.zeros_like(flat, dtype=exact)
        to_rows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            wanted = gradient[start : start + _ROWS].view(-1, len(weight))
            to_weight += wanted.t() @ _patches(part, weight)
            if to_rows is not None:
                patches = (wanted @ flat).view(len(part), x, y, kx, ky, channels)
                sums = torch.zeros_like(part, dtype=exact)
                for i in range(kx):
                    for j in range(ky):
                        sums[:, i : i + x, j : j + y] += patches[:, :, :, i, j]
                to_rows[start : start + _ROWS] = sums
        to_bias = gradient.sum((0, 1, 2), dtype=exact).to(weight.dtype)
        return to_rows, to_weight.view_as(weight).to(weight.dtype), to_bias


def _places(rows: Tensor, weight: Tensor) -> tuple[int, int, int]:
    """Return the number of samples, and of positions of the kernel along both axes."""
    samples, x, y, _ = rows.shape
    _, kx, ky, _ = weight.shape
    return samples, x - kx + 1, y - ky + 1


def _patches(rows: Tensor, weight: Tensor) -> Tensor:
    """Copy the patches of [B, X, Y, C] under each position of the kernel; [B·x·y, kx·ky·C]."""
    samples, x, y = _places(rows, weight)
    _, kx, ky, channels = weight.shape
    strides = (*rows.stride()[:3], rows.stride(1), 1)
    patches = rows.as_strided((samples, x, y, kx, ky * channels), strides, rows.storage_offset())
    return patches.reshape(-1, kx * ky * channels)


# The fastest way --------------------------------------------------------------------------


def convolutions(network: nn.Module) -> list[Convolution]:
    """Return the layers of a network whose way can be chosen."""
    return [layer for layer in network.modules() if isinstance(layer, Convolution)]


def use_ways(network: nn.Module, ways: Sequence[Way]) -> None:
    """Set the way of each convolution of a network."""
    for layer, way in zip(convolutions(network), ways, strict=True):
        layer.use(way)


def choose_ways(
    networks: Mapping[str, nn.Module],
    sizes: NetworkSizes,
    compute: ComputeConfig,
    precision: torch.dtype,
) -> dict[str, list[Way]]:
    """Set the ways of networks on a CPU by `compute.convolutions`; return the ways by network.

    A deterministic training measures nothing: its layers stay convolutions unless set otherwise.
    `actor` sees the actor's channels, other networks the critic's. `precision` is that of forward
    passes.
    """
    choice = compute.convolutions
    if choice == _AUTO and compute.deterministic:
        choice = Way.CONVOLUTION.value
    chosen: dict[str, list[Way]] = {}
    known: dict[tuple[torch.Size, ...], list[Way]] = {}
    for name, network in networks.items():
        if not (layers := convolutions(network)):
            continue
        shapes = tuple(layer.weight.shape for layer in layers)
        if choice != _AUTO:
            known[shapes] = [Way(choice)] * len(layers)
        elif shapes not in known:
            maps = torch.full((_SAMPLES, sizes.channels(name), *sizes.shape), 0.5)
            known[shapes] = fastest_ways(network, maps, precision)
        use_ways(network, known[shapes])
        chosen[name] = known[shapes]
    return chosen


def fastest_ways(network: nn.Module, maps: Tensor, precision: torch.dtype) -> list[Way]:
    """Return the fastest way of each convolution of a network on this CPU.

    Times the forward and the backward pass of each layer alone, on one core and in CPU time, so
    that other processes hardly matter. Small layers stay convolutions. The network's ways change.
    `maps` are its inputs, [B, C, X, Y]; `precision` is that of forward passes.
    """
    inputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, arguments: tuple[Tensor]) -> None:
        inputs[layer] = arguments[0].detach()

    layers = convolutions(network)
    use_ways(network, [Way.CONVOLUTION] * len(layers))
    hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
    with _one_thread(), autocast(maps.device, precision):
        with torch.no_grad():
            network(maps)
        for hook in hooks:
            hook.remove()
        first, *others = layers
        return [_fastest(first, inputs[first])] + [
            _fastest(layer, inputs[layer].requires_grad_()) for layer in others
        ]


def _fastest(layer: Convolution, maps: Tensor) -> Way:
    """Return the fastest way of a layer."""
    if layer.weight.numel() < _LEAST:
        return Way.CONVOLUTION
    seconds = dict.fromkeys(Way, math.inf)
    for _ in range(_TRIES):
        for way in Way:
            layer.use(way)
            start = time.thread_time()
            outputs = layer(maps)
            torch.autograd.grad(outputs.sum(), [t for t in (layer.weight, maps) if t.requires_grad])
            seconds[way] = min(seconds[way], time.thread_time() - start)
    best = min(Way, key=lambda way: seconds[way])
    return best if seconds[best] < _GAIN * seconds[Way.CONVOLUTION] else Way.CONVOLUTION


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run PyTorch's operators on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
