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


def information_gain(
    before: Tensor, after: Tensor, counted: Tensor, remaining: Tensor, cells: int
) -> tuple[Utility, Tensor]:
    """Return the utility of a round of readings from the cells that changed.

    absolute = mean(w(after)·(H(before) - H(after))) over all cells;
    relative = absolute / mean(w(after)·H(before)), 0 where that is 0
    (Westheider et al. 2023, section III-C).

    Args:
        before: belief before the readings in each window, [E, N, K].
        after: belief after all readings in the same cells.
        counted: [E, N, K] bool, True where a cell counts; windows overlap, and each cell of
            the map may count once.
        remaining: sum of w(p)·H(p) over the whole map before the readings, [E] float64.
        cells: cells of the map, R·C.

    Returns:
        The utility, and the sum of w(p)·H(p) after the readings, [E] float64.
    """
    weight = interest_weight(after)
    entropy_before = entropy(before)
    gain = _total(weight * (entropy_before - entropy(after)), counted)
    reweighted = _total((weight - interest_weight(before)) * entropy_before, counted)
    available = remaining + reweighted
    relative = torch.where(available > 0, gain / available.clamp(min=1e-12), 0.0)
    return Utility((gain / cells).float(), relative.float()), available - gain


def _total(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).flatten(1).sum(1, dtype=torch.float64)
