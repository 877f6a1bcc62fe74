"""How well predicted shares agree with what there truly is."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 10
"""Of the predicted share, equally wide."""


class Reliability:
    """Compares predicted and realised shares of the open entropy, in bins of the predicted one.

    Attributes:
        cells: lattice cells in each bin, [BINS] float64, as all others.
        open_entropy: their entropy; 1 is that of all cells around an average position.
        predicted: how much of it is predicted in the region of interest.
        realised: how much of it truly lies there.
    """

    def __init__(self, device: torch.device) -> None:
        sums = torch.zeros(4, BINS, dtype=torch.float64, device=device)
        self._sums = sums
        self.cells, self.open_entropy, self.predicted, self.realised = sums

    def add(self, open_entropy: Tensor, predicted: Tensor, realised: Tensor) -> None:
        """Count lattice cells; all arguments have one shape."""
        share = predicted / open_entropy.clamp(min=1e-9)  # positions may have no cells
        number = (share * BINS).long().clamp(0, BINS - 1).flatten()
        inside = (number == torch.arange(BINS, device=number.device).unsqueeze(1)).double()
        values = torch.stack((torch.ones_like(predicted), open_entropy, predicted, realised))
        self._sums += values.flatten(1).double() @ inside.mT

    def shares(self) -> tuple[Tensor, Tensor]:
        """Return the mean predicted and realised share of each bin, [BINS]; NaN where it is empty.

        Both are means over the open entropy, as the loss weighs them.
        """
        return self.predicted / self.open_entropy, self.realised / self.open_entropy

    def error(self) -> float:
        """Return the expected calibration error: the mean |predicted − realised share| of the bins.

        The mean is over the open entropy (Guo et al. 2017, with entropy in place of counts).
        """
        return float((self.predicted - self.realised).abs().sum() / self.open_entropy.sum())
