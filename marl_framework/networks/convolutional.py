"""Actor and critic: one convolutional body, two widths."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

_KERNELS = (5, 4, 4)


@dataclass(frozen=True)
class NetworkSizes:
    """What the task asks of the networks."""

    actor_channels: int
    critic_channels: int
    shape: tuple[int, int]
    """Input size (X, Y)."""
    num_actions: int


class _ConvolutionalNetwork(nn.Module):
    """Three convolutions without padding, two linear layers, ReLU after all but the last.

    Kernels are 5, 4 and 4 wide, as in the paper (11 × 11 → 7 → 4 → 1); on an input too small
    for one, that kernel shrinks to what is left (6 × 6 → 2 → 1 → 1).

    The last layer runs in float32 under mixed precision too: actions differ in value by a
    hundredth of the value itself, which is as fine as bfloat16 resolves.

    Attributes:
        recompute: keep only the input until the backward pass, which then computes the hidden
            layers once more (gradient checkpointing).
    """

    recompute = False

    def __init__(
        self, channels: int, shape: tuple[int, int], width: int, hidden: int, outputs: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        x, y = shape
        for kernel in _KERNELS:
            size = (min(kernel, x), min(kernel, y))
            layers += [nn.Conv2d(channels, width, size), nn.ReLU()]
            channels, x, y = width, x - size[0] + 1, y - size[1] + 1
        layers += [nn.Flatten(), nn.Linear(width * x * y, hidden), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, maps: Tensor) -> Tensor:
        """Map stacked channels [B, C, X, Y] to [B, outputs] float32."""
        hidden: Tensor
        if self.recompute and torch.is_grad_enabled():
            hidden = checkpoint(self.body, maps, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden = self.body(maps)
        exact = self.head.weight.dtype
        if hidden.dtype == exact:
            return self.head(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.to(exact))


class ActorNetwork(_ConvolutionalNetwork):
    """Policy logits [B, A] from observations [B, C_a, X, Y]; shared by all UAVs.

    Westheider et al. 2023, section IV-B.
    """

    def __init__(self, sizes: NetworkSizes, conv_channels: int, hidden_dim: int) -> None:
        super().__init__(
            sizes.actor_channels, sizes.shape, conv_channels, hidden_dim, sizes.num_actions
        )


class CriticNetwork(_ConvolutionalNetwork):
    """Values Q(s, ·) [B, A] of a UAV's own actions from critic states [B, C_c, X, Y].

    The state holds the others' actions, not the own one (Foerster et al. 2018, section 4).
    """

    def __init__(self, sizes: NetworkSizes, conv_channels: int, hidden_dim: int) -> None:
        super().__init__(
            sizes.critic_channels, sizes.shape, conv_channels, hidden_dim, sizes.num_actions
        )


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move `target` towards `source` by the share `tau`, in place; 1 copies."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.lerp_(new, tau) if tau < 1 else old.copy_(new)


def taken(values: Tensor, actions: Tensor) -> Tensor:
    """Select the values [..., A] of the actions taken [...]."""
    return values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
