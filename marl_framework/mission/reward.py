"""Information gained by a round of readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.dotted import load_part
from marl_framework.config.errors import ConfigError
from marl_framework.config.mission import RewardConfig
from marl_framework.mission.belief import entropy, interest_weight
from marl_framework.mission.state import MissionState


class Utility(NamedTuple):
    """Information gained: absolute [bit per cell], and relative to what was left; [E] each."""

    absolute: Tensor
    relative: Tensor


Reward = Callable[[MissionState, Tensor, Utility], Tensor]
"""Shared reward of the team, [E] float32.

Called after every step with the missions as they stand now, the actions flown, [E, N], and the
information gained. On the device: it must not read tensors back to the host.
"""


def make_reward(config: RewardConfig) -> Reward:
    """Return the reward that `experiment.reward` describes.

    Raises:
        ConfigError: the user's own function cannot be loaded.
    """
    if config.function is None:
        scale, offset = config.relative_scale, config.relative_offset
        return lambda state, actions, utility: scale * utility.relative + offset
    key, path = "experiment.reward.function", config.function
    function = load_part(path, key, "state", "actions", "utility")

    def reward(state: MissionState, actions: Tensor, utility: Utility) -> Tensor:
        found = function(state, actions, utility)
        wanted = utility.relative.shape
        if not isinstance(found, Tensor) or found.shape != wanted:
            got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"{key}: {path} must return a tensor of one reward a mission, {list(wanted)}, "
                f"got {got}"
            )
        return found.float()

    return reward


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
    remaining.copy_(available - gain)
    return Utility((gain / cells).float(), _share(gain, available))


def relative_with_outside(
    roi: tuple[Tensor, Tensor], everywhere: tuple[Tensor, Tensor], outside_weight: float
) -> Tensor:
    """Return the relative gain where cells outside the region of interest count, too.

    With weights w₀ + (1 - w₀)·w(p) in place of w(p), see `utility`: w₀ is the outside weight.

    Args:
        roi: sums of w(after)·H over the map after the readings, and of what they removed,
            [E] each.
        everywhere: the same without weights.
        outside_weight: 0 to 1.
    """
    (left, gain), (all_left, all_gain) = roi, everywhere
    gained = gain.lerp(all_gain, outside_weight)
    available = (left + gain).lerp(all_left + all_gain, outside_weight)
    return _share(gained, available)


def _share(gain: Tensor, available: Tensor) -> Tensor:
    """Return gain / available, 0 where nothing was, [E] float32."""
    return torch.where(available > 0, gain / available.clamp(min=1e-12), 0.0).float()


def _total(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).flatten(1).sum(1, dtype=torch.float64)
