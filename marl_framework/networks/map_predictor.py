"""The network that predicts where unmapped ground is of interest."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PARTS = 3
"""Stretches of the finer grid in each cell of the lattice, along both axes."""
CHANNELS = 3
"""Of both grids: belief, its entropy, and their product."""


class MapPredictor(nn.Module):
    """Predicts the share of each lattice cell's entropy that lies in the region of interest.

    It sees a belief averaged onto the lattice and onto a grid `PARTS` times as fine, which shows
    the edges of what has been seen. Dilated convolutions look far, and means and maxima over the
    map tell every cell what the terrain is like. Works on any lattice.

    Args:
        width: channels of the hidden layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(
            nn.Conv2d(CHANNELS, width // 2, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width // 2, width, PARTS, stride=PARTS),
            nn.SiLU(),
        )
        self.coarse = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.near = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=2, dilation=2),
            nn.SiLU(),
        )
        self.everywhere = nn.Sequential(
            nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.far = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=3, dilation=3),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Return logits [B, X, Y] of maps [B, C, PARTS·X, PARTS·Y] and [B, C, X, Y]."""
        hidden = self.fine(fine) + self.coarse(coarse)
        hidden = hidden + self.near(hidden)
        whole = torch.cat((hidden.mean((-2, -1)), hidden.amax((-2, -1))), dim=-1)
        hidden = hidden + self.everywhere(whole)[..., None, None]
        found: Tensor = self.far(hidden).squeeze(1)
        return found
