"""Information gained by a round of readings, and the team's reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.mission import RewardConfig
from marl_framework.config.parts import load_part
from marl_framework.mission.accuracy import chunks, f1
from marl_framework.mission.state import MissionState

_KEY = "experiment.reward.function"


class Utility(NamedTuple):
    """Information gained by a round of readings; every field is [E] float32."""

    absolute: Tensor
    """Information gained in the region of interest [bit per cell]."""
    relative: Tensor
    """`absolute` divided by the remaining entropy in the region of interest; see `utility`."""
    everywhere: Tensor
    """Information gained in all cells, unweighted [bit per cell]."""


Reward = Callable[[MissionState, Tensor, Utility], Tensor]
"""Shared reward of the team, [E] float32.

The arguments are the missions after a step, the actions taken, [E, N], and the information gained.
The function must not copy tensors to the host.
"""


def utility(sums: Tensor, state: MissionState, cells: int | Tensor) -> Utility:
    """Compute the utility of a round of readings; update the entropy sums in `state`.

    absolute = mean(w(after)·(H(before) - H(after))) over all cells;
    relative = absolute / mean(w(after)·H(before)), 0 if the denominator is 0
    (Westheider et al. 2023, section III-C).

    `sums` are the results of `windows.fuse_global`, [3, E] float64; `cells` is the number of cells
    that count, R·C or [E].
    """
    gain, reweighted, removed = sums
    available = state.weighted_entropy + reweighted
    state.weighted_entropy.copy_(available - gain)
    state.entropy.sub_(removed)
    absolute, _, everywhere = (sums / cells).float()
    return Utility(absolute, _safe_ratio(gain, available), everywhere)


def with_outside(
    utility: Utility, state: MissionState, cells: int | Tensor, outside_weight: float
) -> Utility:
    """Return the utility with a relative gain that includes cells outside the region of interest.

    Weights are w₀ + (1 - w₀)·w(after) instead of w(after), where w₀ is `outside_weight`; for
    `cells` see `utility`.
    """
    gain = cells * utility.absolute.double().lerp(utility.everywhere.double(), outside_weight)
    left = state.weighted_entropy.lerp(state.entropy, outside_weight)
    return utility._replace(relative=_safe_ratio(gain, left + gain))


class TeamReward:
    """Reward configured in `experiment.reward`, for maps of R·C = `cells` cells.

    `f1_scale` adds the F1 gain of the global belief; this reads whole maps in every step. Raises
    ConfigError if the custom function cannot be loaded.
    """

    def __init__(self, config: RewardConfig, cells: int) -> None:
        self._config = config
        self._cells = cells
        self._custom: Reward | None = None
        if config.function is not None:
            self._custom = load_part(config.function, _KEY, "state", "actions", "utility")

    def begin(self, state: MissionState) -> None:
        """Store the current F1 in `state`, as the reference for the next gain."""
        if self._config.f1_scale:
            parts = chunks(state.global_belief, state.truth)
            state.f1.copy_(torch.cat([f1(*part) for part in parts]))

    def __call__(self, state: MissionState, actions: Tensor, utility: Utility) -> Tensor:
        """Return the reward of a step; see `Reward`."""
        weight, scale = self._config.outside_weight, self._config.f1_scale
        if weight:
            cells = state.counted if state.counted.numel() else self._cells
            utility = with_outside(utility, state, cells, weight)
        if self._custom is None:
            relative, offset = self._config.relative_scale, self._config.relative_offset
            reward = relative * utility.relative + offset
        else:
            reward = self._checked(self._custom(state, actions, utility), utility.relative.shape)
        if scale:
            before = state.f1.clone()
            self.begin(state)
            reward = reward + scale * (state.f1 - before)
        return reward

    def _checked(self, reward: Any, shape: torch.Size) -> Tensor:
        if not isinstance(reward, Tensor) or reward.shape != shape:
            got = list(reward.shape) if isinstance(reward, Tensor) else type(reward).__name__
            raise ConfigError(
                f"{_KEY}: {self._config.function} must return a tensor with one reward per "
                f"mission, {list(shape)}; got {got}"
            )
        return reward.float()


def _safe_ratio(gain: Tensor, available: Tensor) -> Tensor:
    """Return gain / available, [E] float32; 0 where `available` is 0."""
    return torch.where(available > 0, gain / available.clamp(min=1e-12), 0.0).float()
