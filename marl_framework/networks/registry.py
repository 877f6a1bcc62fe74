"""How a params file chooses a network."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from marl_framework.config.dotted import load_part
from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import ComputeConfig, NetworksConfig
from marl_framework.config.model import NetworkSizes
from marl_framework.config.parts import NETWORKS
from marl_framework.device import autocast, resolve_precision


def make_actor(networks: NetworksConfig, compute: ComputeConfig, sizes: NetworkSizes) -> nn.Module:
    """Return a network from observations [B, C_a, X, Y] to policy logits [B, A]."""
    return _make("actor", networks, compute, sizes.actor_channels, sizes)


def make_critic(networks: NetworksConfig, compute: ComputeConfig, sizes: NetworkSizes) -> nn.Module:
    """Return a network from critic inputs [B, C_c, X, Y] to values of a UAV's own actions [B, A].

    The input holds the others' actions, not the own one (Foerster et al. 2018, section 4).
    """
    return _make("critic", networks, compute, sizes.critic_channels, sizes)


def _make(
    role: str,
    networks: NetworksConfig,
    compute: ComputeConfig,
    channels: int,
    sizes: NetworkSizes,
) -> nn.Module:
    settings = getattr(networks, role)
    key = f"networks.{role}.type"
    path = NETWORKS.get(settings.type, settings.type)
    given = ["channels", "shape", "outputs", "settings", *(["heard"] if sizes.heard else [])]
    part = load_part(path, key, *given)
    heard = (sizes.heard,) if sizes.heard else ()
    network = part(channels, sizes.shape, sizes.num_actions, settings, *heard)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{key}: {settings.type} must make a torch.nn.Module")
    for name, layer in network.named_modules():
        if _varies(layer):
            raise ConfigError(
                f"{key}: {settings.type} has {type(layer).__name__} in {name or 'itself'}, which "
                "acts otherwise than it learns; use LayerNorm or GroupNorm, and no dropout"
            )
    if settings.type not in NETWORKS:
        _check_output(network, compute, channels, sizes, f"{key}: {settings.type}")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ConfigError(f"{key}: {settings.type} has no parameter that learns")
    if compute.gradient_checkpointing:
        if not hasattr(network, "recompute"):
            raise ConfigError(
                f"compute.gradient_checkpointing: {settings.type} of {key} has no attribute "
                "recompute; set compute.gradient_checkpointing=false"
            )
        network.recompute = True  # type: ignore[assignment]
    return network


@torch.no_grad()
def _check_output(
    network: nn.Module, compute: ComputeConfig, channels: int, sizes: NetworkSizes, name: str
) -> None:
    """Check what a network of one's own makes of two observations, as it flies and as it learns."""
    device = next((each.device for each in network.parameters()), None)
    seen = torch.zeros(2, channels, *sizes.shape, device=device)
    if seen.is_meta:  # made to be measured
        return
    precision = torch.float32
    if compute.precision != "float16":  # which no CPU has
        precision = resolve_precision(compute.precision, seen.device)
    for kind in dict.fromkeys((torch.float32, precision)):
        try:
            with torch.enable_grad(), autocast(seen.device, precision):
                out = network(seen.to(kind))
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"{name} fails on observations {list(seen.shape)} of "
                f"{str(kind).removeprefix('torch.')}: {text or type(error).__name__}"
            ) from error
    wanted = [2, sizes.num_actions]
    if isinstance(out, torch.Tensor) and not out.isfinite().all():
        raise ConfigError(f"{name} makes outputs of observations of 0 that are not finite")
    if isinstance(out, torch.Tensor) and not out.requires_grad:
        raise ConfigError(f"{name} makes outputs without a gradient, from which nothing is learned")
    if not isinstance(out, torch.Tensor) or list(out.shape) != wanted:
        got = list(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise ConfigError(
            f"{name} must make outputs {wanted} of observations {list(seen.shape)}, got {got}"
        )


def _varies(layer: nn.Module) -> bool:
    """Return whether a layer's output depends on chance, on the rest of the batch or on others.

    Then what flew a mission is not what learns from it. Layers in evaluation mode stay in it.
    """
    if not layer.training:
        return isinstance(layer, _BatchNorm) and layer.running_mean is None
    dropout = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0)
    if isinstance(dropout, int | float) and dropout > 0:
        return True
    tracks = isinstance(layer, _NormBase) and layer.track_running_stats
    return tracks or isinstance(layer, _BatchNorm | nn.RReLU)
