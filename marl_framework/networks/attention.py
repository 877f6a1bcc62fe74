"""Attention network for teams of any size: a UAV attends to the UAVs it hears."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from marl_framework.config.learning import NetworkConfig
from marl_framework.networks.convolutional import HiddenAndHead, hidden_layers, run_hidden


class AttentionNetwork(HiddenAndHead):
    """Attention over one token per UAV: the UAV itself (with its maps), and each UAV it hears.

    The input starts with one plane per UAV of the team, the own plane first (`heard_uavs`). Planes
    of UAVs that are not heard are 0 and masked. The output is independent of the order of the other
    UAVs, so the same weights serve any team size. The remaining maps pass through the convolutions
    of `ConvolutionalNetwork`; arguments are the same, plus the number of planes, `heard`. Layers
    are pre-norm (Xiong et al. 2020).
    """

    def __init__(
        self,
        channels: int,
        shape: tuple[int, int],
        outputs: int,
        settings: NetworkConfig,
        heard: int,
    ) -> None:
        super().__init__()
        self._maps = channels - heard
        width = settings.hidden_dim
        self.own = hidden_layers(self._maps, shape, settings)
        self.uav = nn.Linear(shape[0] * shape[1], width)
        self.layers = nn.ModuleList(_Layer(width, settings.heads) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def hide(self, maps: Tensor) -> Tensor:
        """Run all layers except the last on planes and stacked channels [B, N + C, X, Y]."""
        planes = maps[:, : maps.shape[1] - self._maps].flatten(2)
        heard = (planes > 0).any(-1)[:, None, None, :]  # [B, 1, 1, N]: all heads and queries
        tokens = self.uav(planes.contiguous())  # contiguous: bias is added before rounding
        own = tokens[:, :1] + run_hidden(self.own, maps[:, planes.shape[1] :]).unsqueeze(1)
        tokens = torch.cat((own, tokens[:, 1:]), dim=1)
        for layer in self.layers:
            tokens = layer(tokens, heard)
        return self.norm(tokens[:, 0])


class _Layer(nn.Module):
    """Residual self-attention over tokens [B, N, D], then a residual hidden layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        wide = 2 * width
        self.hidden = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        parts = self.project(self.first(tokens)).unflatten(-1, (3, self._heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # [B, heads, N, D / heads] each
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        tokens = tokens + self.mix(attended.transpose(1, 2).flatten(2))
        return tokens + self.hidden(self.second(tokens))
