"""Network that predicts the region of interest on unmapped ground."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PARTS = 3
"""Number of fine-grid cells per lattice cell, along each axis."""
CHANNELS = 3
"""Number of channels of both grids: belief, its entropy, and the product."""


class MapPredictor(nn.Module):
    """Predictor of the share of each lattice cell's entropy that lies in the region of interest.

    Inputs are beliefs averaged onto the lattice and onto a grid `PARTS` times as fine. Means and
    maxima over the map provide global features. The network works on any lattice. `width` is the
    number of channels of the hidden layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        half, act = width // 2, nn.SiLU()
        finest = nn.Conv2d(CHANNELS, half, 3, padding=1)
        self.fine = nn.Sequential(finest, act, nn.Conv2d(half, width, PARTS, stride=PARTS), act)
        self.coarse = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.near = nn.Sequential(_dilated(width, 1), act, _dilated(width, 2), act)
        self.everywhere = nn.Sequential(nn.Linear(2 * width, width), act, nn.Linear(width, width))
        layers = _dilated(width, 1), act, _dilated(width, 3), act, _dilated(width, 1), act
        self.far = nn.Sequential(*layers, nn.Conv2d(width, 1, 1))

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Return logits [B, X, Y] for maps [B, C, PARTS·X, PARTS·Y] and [B, C, X, Y]."""
        hidden = self.fine(fine) + self.coarse(coarse)
        hidden = hidden + self.near(hidden)
        whole = torch.cat((hidden.mean((-2, -1)), hidden.amax((-2, -1))), dim=-1)
        hidden = hidden + self.everywhere(whole)[..., None, None]
        logits: Tensor = self.far(hidden).squeeze(1)
        return logits


def _dilated(width: int, dilation: int) -> nn.Conv2d:
    return nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation)
