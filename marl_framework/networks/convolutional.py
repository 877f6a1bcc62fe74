"""The convolutional network of the paper, for actor and critic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from marl_framework.config.learning import ComputeConfig, NetworkConfig
from marl_framework.device import resolve_precision, uses_triton
from marl_framework.networks.layers import Convolution, convolutions, use_ways

Network = TypeVar("Network", bound=nn.Module)

_KERNELS = (5, 4, 4)


def hidden_layers(channels: int, shape: tuple[int, int], settings: NetworkConfig) -> nn.Sequential:
    """Build all layers except the last, from maps [B, channels, *shape] to [B, hidden_dim]."""
    width, hidden = settings.conv_channels, settings.hidden_dim
    layers: list[nn.Module] = []
    x, y = shape
    for kernel in _KERNELS:
        size = (min(kernel, x), min(kernel, y))
        layers += [Convolution(channels, width, size), nn.Identity()]  # numbered as in checkpoints
        channels, x, y = width, x - size[0] + 1, y - size[1] + 1
    layers += [nn.Flatten(), nn.Linear(width * x * y, hidden), nn.ReLU()]
    return nn.Sequential(*layers)


def run_hidden(layers: nn.Module, maps: Tensor) -> Tensor:
    """Run `hidden_layers`; under autocast on a GPU, cast all weights with one kernel."""
    device = maps.device.type
    if device != "cuda" or not torch.is_autocast_enabled(device):
        hidden: Tensor = layers(maps)
        return hidden
    names, weights = zip(*layers.named_parameters(), strict=True)
    cast = _CastAll.apply(torch.get_autocast_dtype(device), *weights)
    return functional_call(layers, dict(zip(names, cast, strict=True)), (maps,))


class HiddenAndHead(nn.Module, ABC):
    """Base class of networks whose last layer is linear and runs in float32 under autocast.

    Attributes:
        head: last layer, created by subclasses.
    """

    head: nn.Linear

    def forward(self, maps: Tensor) -> Tensor:
        """Map stacked channels [B, C, X, Y] to [B, outputs] float32."""
        hidden = self.hide(maps)
        exact = self.head.weight.dtype
        if hidden.dtype == exact:
            return self.head(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.to(exact))

    @abstractmethod
    def hide(self, maps: Tensor) -> Tensor:
        """Run all layers except the last."""


class ConvolutionalNetwork(HiddenAndHead):
    """Three convolutions without padding and two linear layers, with ReLU in between.

    Kernel widths are 5, 4 and 4 (Westheider et al. 2023, section IV-B). If the input is too small,
    a kernel shrinks to the remaining size (6 × 6 → 2 → 1 → 1).

    Args:
        channels: number of input channels.
        shape: size of the input maps, (X, Y).
        outputs: number of actions.
        settings: layer widths.
    """

    def __init__(
        self, channels: int, shape: tuple[int, int], outputs: int, settings: NetworkConfig
    ) -> None:
        super().__init__()
        self.body = hidden_layers(channels, shape, settings)
        self.head = nn.Linear(settings.hidden_dim, outputs)

    def hide(self, maps: Tensor) -> Tensor:
        """Run the hidden layers."""
        return run_hidden(self.body, maps)


class _CastAll(torch.autograd.Function):
    """Cast of many tensors with one kernel; the backward pass casts gradients likewise."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = tensors[0].dtype
        return _cast(tensors, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_cast(gradients, ctx.dtype)


def _cast(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    cast = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
    torch._foreach_copy_(cast, tensors)
    return cast


def place(network: Network, compute: ComputeConfig, device: torch.device) -> Network:
    """Move a network to a device, and set how it computes convolutions there.

    Half precision with Triton has channels-last memory; CPUs follow `compute.convolutions`.
    """
    if device.type == "meta":  # custom networks may share modules
        network = deepcopy(network)
    network.to(device)
    half = resolve_precision(compute.precision, device) != torch.float32
    if device.type == "cpu":
        use_ways(network, compute.convolutions, half)
    elif half and uses_triton(compute, device):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for layer in convolutions(network):
            layer.fuses = True
    return network
