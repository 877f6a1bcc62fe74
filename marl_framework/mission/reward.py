"""Information gained by a round of readings."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.mission.belief import entropy, interest_weight


class Utility(NamedTuple):
    """Information gained: absolute [bit per cell], and relative to what was left; [E] each."""

    absolute: Tensor
    relative: Tensor


def changes(before: Tensor, after: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Return what changed cells add to the sums behind the utility.

    Args:
        before: belief before the readings in each window, [E, N, K].
        after: belief after all readings in the same cells.
        counted: [E, N, K] bool, True where a cell counts; windows overlap, and each cell of
            the map may count once.

    Returns:
        Sums of w(after)·(H(before) - H(after)) and of (w(after) - w(before))·H(before),
        [E] float64.
    """
    weight = interest_weight(after)
    entropy_before = entropy(before)
    gain = weight * (entropy_before - entropy(after))
    reweighted = (weight - interest_weight(before)) * entropy_before
    return _total(gain, counted), _total(reweighted, counted)


def utility(gain: Tensor, reweighted: Tensor, remaining: Tensor, cells: int) -> Utility:
    """Return the utility of a round of readings, and update what remains to be learned.

    absolute = mean(w(after)·(H(before) - H(after))) over all cells;
    relative = absolute / mean(w(after)·H(before)), 0 where that is 0
    (Westheider et al. 2023, section III-C).

    Args:
        gain: from `changes`, [E] float64.
        reweighted: from `changes`, [E] float64.
        remaining: sum of w(p)·H(p) over the whole map, [E] float64; updated in place.
        cells: cells of the map, R·C.
    """
    available = remaining + reweighted
    relative = torch.where(available > 0, gain / available.clamp(min=1e-12), 0.0)
    remaining.copy_(available - gain)
    return Utility((gain / cells).float(), relative.float())


def _total(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).flatten(1).sum(1, dtype=torch.float64)
