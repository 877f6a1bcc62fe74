"""Network that predicts the region of interest in unmapped ground."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PARTS = 3
"""Number of cells of the finer grid per lattice cell, along each axis."""
CHANNELS = 3
"""Number of channels of both grids: belief, its entropy, and their product."""


class MapPredictor(nn.Module):
    """Predicts the share of each lattice cell's entropy that lies in the region of interest.

    The input is a belief averaged onto the lattice and onto a grid `PARTS` times as fine, which
    shows the edges of the observed area. Dilated convolutions have a wide view; means and maxima
    over the map give every cell global features. Works on any lattice.

    Args:
        width: number of channels of the hidden layers.
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
