"""Who hears whom."""

from __future__ import annotations

import torch
from torch import Tensor


def hear(metres: Tensor, ranges: Tensor, uniform: Tensor, failure_rate: float) -> Tensor:
    """Return who hears whom: [E, N, N] bool, [e, i, j] = i hears j; itself always.

    Args:
        metres: positions [E, N, 3] [m].
        ranges: communication range [E] [m].
        uniform: [E, N, N] draws in [0, 1), one for each ordered pair.
        failure_rate: a message is lost where its draw lies below this.
    """
    offset = metres.unsqueeze(2) - metres.unsqueeze(1)
    reach = ranges.square() * (1 + 1e-5)  # a distance equal to the range counts as near
    near = offset.square().sum(-1) <= reach.view(-1, 1, 1)
    itself = torch.eye(metres.shape[1], dtype=torch.bool, device=metres.device)
    return (near & (uniform >= failure_rate)) | itself
