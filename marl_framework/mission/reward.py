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
    """Information gained by a round of readings; every field is [E] float32."""

    absolute: Tensor
    """In the region of interest [bit per cell]."""
    relative: Tensor
    """The same over what was left there; see `utility`."""
    everywhere: Tensor
    """Of all cells alike [bit per cell]."""


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


def changes(before: Tensor, after: Tensor, counted: Tensor) -> Tensor:
    """Return sums over changed cells.

    Args:
        before: belief before the readings in each window, [E, N, K].
        after: belief after all readings in the same cells.
        counted: [E, N, K] bool, True where a cell counts; windows overlap, and each cell of
            the map may count once.

    Returns:
        Sums of w(after)·(H(before) - H(after)), of (w(after) - w(before))·H(before) and of
        H(before) - H(after), [3, E] float64.
    """
    weight = interest_weight(after)
    entropy_before = entropy(before)
    removed = entropy_before - entropy(after)
    reweighted = (weight - interest_weight(before)) * entropy_before
    summed = (weight * removed, reweighted, removed)
    return torch.stack([_total(values, counted) for values in summed])


def utility(sums: Tensor, state: MissionState, cells: int) -> Utility:
    """Return the utility of a round of readings, and update what remains to be learned.

    absolute = mean(w(after)·(H(before) - H(after))) over all cells;
    relative = absolute / mean(w(after)·H(before)), 0 where that is 0
    (Westheider et al. 2023, section III-C).

    Args:
        sums: from `changes`, [3, E] float64.
        state: its sums of entropies are updated.
        cells: cells of the map, R·C.
    """
    gain, reweighted, removed = sums
    available = state.weighted_entropy + reweighted
    state.weighted_entropy.copy_(available - gain)
    state.entropy.sub_(removed)
    absolute, _, everywhere = (sums / cells).float()
    return Utility(absolute, _share(gain, available), everywhere)


def with_outside(
    utility: Utility, state: MissionState, cells: int, outside_weight: float
) -> Utility:
    """Return the utility with cells outside the region of interest in its relative gain, too.

    With weights w₀ + (1 - w₀)·w(after) in place of w(after); w₀ is the outside weight.

    Args:
        utility: of a round of readings.
        state: the missions after it.
        cells: cells of the map, R·C.
        outside_weight: 0 to 1.
    """
    gain = cells * utility.absolute.double().lerp(utility.everywhere.double(), outside_weight)
    left = state.weighted_entropy.lerp(state.entropy, outside_weight)
    return utility._replace(relative=_share(gain, left + gain))


def _share(gain: Tensor, available: Tensor) -> Tensor:
    """Return gain / available, 0 where nothing was, [E] float32."""
    return torch.where(available > 0, gain / available.clamp(min=1e-12), 0.0).float()


def _total(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).flatten(1).sum(1, dtype=torch.float64)
