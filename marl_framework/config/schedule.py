"""Missions and transitions of a training step, and the learning rates that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from marl_framework.config.learning import LearningConfig
from marl_framework.config.mission_ranges import MissionRanges


@dataclass(frozen=True)
class Schedule:
    """Missions and transitions of a training step, over all ranks."""

    missions: MissionRanges
    """Values that missions draw from."""
    num_envs: int
    """Number of missions of a rollout, E."""
    learning: LearningConfig
    """Settings of batches and learning rates."""

    @property
    def transitions_per_mission(self) -> Fraction:
        """Mean number of moves of all UAVs of a mission, without costs and crashes."""
        sizes, budgets = self.missions.team_sizes, self.missions.budgets
        return Fraction(sum(sizes), len(sizes)) * (Fraction(sum(budgets), len(budgets)) + 1)

    @property
    def rollouts_per_step(self) -> int:
        """Number of rollouts of `num_envs` missions that fill the batches of a training step."""
        wanted = self.learning.batch_size * self.learning.batch_number
        return math.ceil(wanted / (self.num_envs * self.transitions_per_mission))

    @property
    def transitions_per_step(self) -> int:
        """Mean number of transitions of a training step."""
        missions = self.rollouts_per_step * self.num_envs
        return round(missions * self.transitions_per_mission)

    @property
    def transitions_per_batch(self) -> float:
        """Mean number of transitions of one update of the networks."""
        collected = self.transitions_per_step
        return collected / min(self.learning.batch_number, collected)

    @property
    def places_per_step(self) -> int:
        """Number of transitions of a training step if all teams and missions were the largest."""
        missions = self.rollouts_per_step * self.num_envs
        return missions * self.missions.most_agents * self.missions.episode_length

    @property
    def learning_rate_scale(self) -> float:
        """Factor of the learning rates by `learning.lr_scaling`.

        The batch over `lr_base_batch` (`linear`: Goyal et al. 2017, section 2.1), the root of
        that (`sqrt`, which suits Adam: Malladi et al. 2022), or 1 (`none`).
        """
        share = self.transitions_per_batch / self.learning.lr_base_batch
        return {"none": 1.0, "sqrt": math.sqrt(share), "linear": share}[self.learning.lr_scaling]

    def learning_rate_factor(self, step: int) -> float:
        """Return the factor of the configured learning rates at a training step.

        It is `learning_rate_scale`, times (step + 1) / `warmup_steps` until that is 1, times a
        line from 1 at the first to `lr_decay` at the last training step.

        Args:
            step: number of training steps done.
        """
        learning = self.learning
        warm = min((step + 1) / learning.warmup_steps, 1.0) if learning.warmup_steps else 1.0
        done = min(step / max(learning.training_steps - 1, 1), 1.0)
        return self.learning_rate_scale * warm * (1 - (1 - learning.lr_decay) * done)


def passes(interval: int, before: int, step: int) -> bool:
    """Return whether a multiple of an interval lies in (before, step]; never for interval 0."""
    return interval > 0 and step // interval > before // interval
