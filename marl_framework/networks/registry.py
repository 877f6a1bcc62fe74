"""Construction and validation of the networks named in a params file."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import ComputeConfig, NetworksConfig
from marl_framework.config.model import NetworkSizes
from marl_framework.config.parts import NETWORKS, custom_code, make_part
from marl_framework.device import autocast, resolve_precision


def make_actor(networks: NetworksConfig, compute: ComputeConfig, sizes: NetworkSizes) -> nn.Module:
    """Build a network from observations [B, C_a, X, Y] to policy logits [B, A]."""
    return _make_network("actor", networks, compute, sizes.actor_channels, sizes)


def make_critic(networks: NetworksConfig, compute: ComputeConfig, sizes: NetworkSizes) -> nn.Module:
    """Build a network from critic inputs [B, C_c, X, Y] to values of own actions [B, A]."""
    return _make_network("critic", networks, compute, sizes.critic_channels, sizes)


def _make_network(
    role: str, networks: NetworksConfig, compute: ComputeConfig, channels: int, sizes: NetworkSizes
) -> nn.Module:
    settings, key = getattr(networks, role), f"networks.{role}.type"
    heard = {"heard": sizes.heard} if sizes.heard else {}
    network = make_part(
        NETWORKS,
        settings.type,
        key,
        channels=channels,
        shape=sizes.shape,
        outputs=sizes.num_actions,
        settings=settings,
        **heard,
    )
    name = f"{key}: {settings.type}"
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{name} must be a torch.nn.Module")
    for where, layer in network.named_modules():
        if output_varies(layer):
            raise ConfigError(
                f"{name} has {type(layer).__name__} in {where or 'itself'}, which behaves "
                "differently in training and inference; use LayerNorm or GroupNorm, and no dropout"
            )
    if settings.type not in NETWORKS:
        _check_output(network, compute, channels, sizes, name)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ConfigError(f"{name} has no trainable parameter")
    return network


@torch.no_grad()
def _check_output(
    network: nn.Module, compute: ComputeConfig, channels: int, sizes: NetworkSizes, name: str
) -> None:
    """Check the outputs of a custom network for two observations, in each precision used."""
    device = next((parameter.device for parameter in network.parameters()), None)
    seen = torch.zeros(2, channels, *sizes.shape, device=device)
    if seen.is_meta:  # only estimates memory
        return
    precision = torch.float32
    if compute.precision != "float16":  # no CPU supports it
        precision = resolve_precision(compute.precision, seen.device)
    for dtype in dict.fromkeys((torch.float32, precision)):
        given = f"observations {list(seen.shape)} of {str(dtype).removeprefix('torch.')}"
        with (
            custom_code(f"{name} fails on {given}"),
            torch.enable_grad(),
            autocast(seen.device, precision),
        ):
            out = network(seen.to(dtype))
    check_outputs(out, [2, sizes.num_actions], name, seen)
    if not out.requires_grad:
        raise ConfigError(f"{name} must return outputs with a gradient; do not detach them")


def check_outputs(out: object, shape: list[int], name: str, seen: torch.Tensor) -> None:
    """Check the outputs of the custom component `name` for zero observations `seen`.

    Raises ConfigError if `out` is not a finite tensor with this shape.
    """
    if not isinstance(out, torch.Tensor) or list(out.shape) != shape:
        got = list(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        given = f"observations {list(seen.shape)}"
        raise ConfigError(f"{name} must return outputs {shape} for {given}, got {got}")
    if not out.isfinite().all():
        raise ConfigError(f"{name} must return finite outputs; those for zero observations are not")


def output_varies(layer: nn.Module) -> bool:
    """Return whether a layer's output depends on chance, other rows or past batches."""
    if not layer.training:
        return isinstance(layer, _BatchNorm) and layer.running_mean is None
    dropout = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0)
    if isinstance(dropout, int | float) and dropout > 0:
        return True
    tracks = isinstance(layer, _NormBase) and layer.track_running_stats
    return tracks or isinstance(layer, _BatchNorm | nn.RReLU)
