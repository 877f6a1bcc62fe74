"""Contract of expected gains, with E missions, A goals of a UAV, and J other UAVs.

Compiled loops exist only for CPUs; other devices use the plain version.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.kernels.versions import Version, load


def footprint_gains(
    beliefs: Tensor,
    agent: int,
    allowed: Tensor,
    boxes: Tensor,
    rates: Tensor,
    odds: Tensor,
    others: Tensor,
    kept: Tensor,
) -> Tensor:
    """Return the sum of `expected_gain` over the footprint at each goal [bit], [E, A].

    Args:
        beliefs: beliefs of all UAVs, [E, N, R, C].
        agent: index of the UAV that chooses.
        allowed: goals to score, [E, A] bool; the others score 0.
        boxes: footprints at the goals, [E, A, 8] int64: the fields of a `Footprint`.
        rates: probabilities of a miss and a false alarm at the goals, [E, A, 2].
        odds: odds of a positive and a negative reading, divided by the prior odds, [E, A, 2].
        others: next footprints of other UAVs, [E, J, 8] int64.
        kept: factors of the gain in these footprints, [E, J].
    """
    gains = torch.empty(allowed.shape)
    tensors = beliefs, allowed.contiguous(), boxes, rates, odds, others, kept, gains
    load("gains", Version.LOOPS).footprint_gains(agent, *tensors)
    return gains
