"""The paper's network, for actor and critic alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from marl_framework.config.learning import ComputeConfig, NetworkConfig
from marl_framework.device import resolve_precision, uses_triton

Network = TypeVar("Network", bound=nn.Module)

_KERNELS = (5, 4, 4)


def hidden_layers(channels: int, shape: tuple[int, int], settings: NetworkConfig) -> nn.Sequential:
    """Return all layers but the last, from maps [B, channels, *shape] to [B, hidden_dim]."""
    width, hidden = settings.conv_channels, settings.hidden_dim
    layers: list[nn.Module] = []
    x, y = shape
    for kernel in _KERNELS:
        size = (min(kernel, x), min(kernel, y))
        layers += [nn.Conv2d(channels, width, size), nn.ReLU()]
        channels, x, y = width, x - size[0] + 1, y - size[1] + 1
    layers += [nn.Flatten(), nn.Linear(width * x * y, hidden), nn.ReLU()]
    return nn.Sequential(*layers)


def run_hidden(layers: nn.Module, maps: Tensor) -> Tensor:
    """Run `hidden_layers`; on a GPU with weights that are cast all at once."""
    device = maps.device.type
    if device != "cuda" or not torch.is_autocast_enabled(device):
        found: Tensor = layers(maps)
        return found
    dtype = torch.get_autocast_dtype(device)
    names, weights = zip(*layers.named_parameters(), strict=True)
    cast = _CastAll.apply(dtype, *weights)
    return functional_call(layers, dict(zip(names, cast, strict=True)), (maps,))


class HiddenAndHead(nn.Module, ABC):
    """A network whose last layer is linear and runs in float32 under mixed precision too.

    Actions differ in value by a hundredth of the value itself, which is as fine as bfloat16
    resolves.

    Attributes:
        head: the last layer, made by subclasses.
        recompute: keep only the input until the backward pass, which then computes the hidden
            layers once more (gradient checkpointing).
        independent_rows: rows of a batch do not depend on each other, so it can be divided among
            the cores of a CPU.
    """

    head: nn.Linear
    recompute = False
    independent_rows = True

    def forward(self, maps: Tensor) -> Tensor:
        """Map stacked channels [B, C, X, Y] to [B, outputs] float32."""
        hidden: Tensor
        if self.recompute and torch.is_grad_enabled():
            hidden = checkpoint(self.hide, maps, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden = self.hide(maps)
        exact = self.head.weight.dtype
        if hidden.dtype == exact:
            return self.head(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.to(exact))

    @abstractmethod
    def hide(self, maps: Tensor) -> Tensor:
        """Run all layers but the last."""


class ConvolutionalNetwork(HiddenAndHead):
    """Three convolutions without padding, two linear layers, ReLU after all but the last.

    Kernels are 5, 4 and 4 wide, as in the paper (11 × 11 → 7 → 4 → 1; Westheider et al. 2023,
    section IV-B); on an input too small for one, that kernel shrinks to what is left
    (6 × 6 → 2 → 1 → 1).

    Args:
        channels: of the input.
        shape: of the input, (X, Y).
        outputs: one for each action.
        settings: widths.
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
    """Casts many tensors by one kernel, and their gradients by another."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = tensors[0].dtype
        return _cast(tensors, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_cast(gradients, ctx.dtype)


def place(network: Network, compute: ComputeConfig, device: torch.device) -> Network:
    """Move a network to a device; in half precision with Triton, channels come last in memory."""
    if device.type == "meta":  # a custom network may share modules that are used elsewhere
        network = deepcopy(network)
    network.to(device)
    half = resolve_precision(compute.precision, device) != torch.float32
    if half and uses_triton(compute, device):
        # PyTorch's hints lack it.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _cast(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    found = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
    torch._foreach_copy_(found, tensors)
    return found
