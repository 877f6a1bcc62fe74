"""Lattice, map, mission ranges and schedule, derived from the sections of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from marl_framework.config.learning import LearningConfig
from marl_framework.config.mission import (
    ConstraintsConfig,
    EnvironmentConfig,
    ExperimentConfig,
    SensorConfig,
)
from marl_framework.config.types import choices


@dataclass(frozen=True)
class Geometry:
    """Lattice and map of a mission; x before y."""

    lattice_shape: tuple[int, int, int]
    """Number of lattice positions (X, Y, Z)."""
    altitudes: tuple[float, ...]
    """Altitudes of the lattice [m], lowest first."""
    cell_size: tuple[float, float]
    """Cell size of the map (res_x, res_y) [m]."""
    map_shape: tuple[int, int]
    """Number of map cells (R, C)."""
    quarter_turns: bool
    """Whether area and footprints are squares, so that a quarter turn maps missions to missions."""

    @classmethod
    def of(cls, area: EnvironmentConfig, limits: ConstraintsConfig, sensor: SensorConfig) -> Self:
        """Derive lattice and map from the sections of a configuration."""
        low, spacing = limits.min_altitude, limits.spacing
        view, pixel = sensor.field_of_view, sensor.pixel
        angles, pixels = (view.angle_x, view.angle_y), (pixel.number_x, pixel.number_y)
        sides = (area.x_dim, area.y_dim)
        cell_x, cell_y = (
            2 * low * math.tan(math.radians(angle) / 2) / number
            for angle, number in zip(angles, pixels, strict=True)
        )
        x, y = (math.floor(side / spacing + 1e-9) + 1 for side in sides)
        rows, cols = math.floor(area.x_dim / cell_x + 1e-9), math.floor(area.y_dim / cell_y + 1e-9)
        levels = round((limits.max_altitude - low) / spacing) + 1
        return cls(
            lattice_shape=(x, y, levels),
            altitudes=tuple(low + k * spacing for k in range(levels)),
            cell_size=(cell_x, cell_y),
            map_shape=(rows, cols),
            quarter_turns=all(a == b for a, b in (angles, pixels, sides)),
        )


@dataclass(frozen=True)
class MissionRanges:
    """Values that missions draw from."""

    team_sizes: tuple[int, ...]
    """Numbers of UAVs."""
    budgets: tuple[int, ...]
    """Budgets; a mission has budget + 1 moves."""
    cost_limits: tuple[float, ...]
    """Cost limits of UAVs; infinite without a limit."""
    has_cost: bool
    """Whether the moves of UAVs are limited by cost."""
    has_crashes: bool
    """Whether UAVs may crash."""
    has_zones: bool
    """Whether there are no-fly zones or obstacles."""
    drawn_keys: tuple[str, ...]
    """Keys with more than one value, of which each mission draws one."""

    @classmethod
    def of(cls, experiment: ExperimentConfig) -> Self:
        """Collect the values of `experiment`."""
        limits, uav = experiment.constraints, experiment.uav
        cost = limits.cost.limit
        values = {
            "experiment.missions.n_agents": experiment.missions.n_agents,
            "experiment.constraints.budget": limits.budget,
            "experiment.uav.communication_range": uav.communication_range,
            "experiment.uav.failure_rate": uav.failure_rate,
            "experiment.uav.crash_rate": uav.crash_rate,
        }
        return cls(
            team_sizes=choices(experiment.missions.n_agents),
            budgets=choices(limits.budget),
            cost_limits=(math.inf,) if cost is None else choices(cost),
            has_cost=cost is not None,
            has_crashes=max(choices(uav.crash_rate)) > 0,
            has_zones=limits.no_fly_zones is not None or limits.obstacles.number > 0,
            drawn_keys=tuple(key for key, value in values.items() if len(set(choices(value))) > 1),
        )

    @property
    def most_agents(self) -> int:
        """Number of UAVs of the largest team, N."""
        return max(self.team_sizes)

    @property
    def episode_length(self) -> int:
        """Number of moves of the longest mission, T = budget + 1."""
        return max(self.budgets) + 1

    @property
    def has_inactive(self) -> bool:
        """Whether some UAVs are inactive at times."""
        return len(set(self.team_sizes)) > 1 or bool(self.keys_that_end_missions)

    @property
    def keys_that_end_missions(self) -> tuple[str, ...]:
        """Keys by which missions may end at different times: budgets, costs, crashes."""
        ending = {
            "experiment.constraints.budget": len(set(self.budgets)) > 1,
            "experiment.constraints.cost.limit": self.has_cost,
            "experiment.uav.crash_rate": self.has_crashes,
        }
        return tuple(key for key, ends in ending.items() if ends)


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
        return round(self.rollouts_per_step * self.num_envs * self.transitions_per_mission)

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
        """Return the factor of the configured learning rates after some training steps.

        It is `learning_rate_scale`, times (step + 1) / `warmup_steps` until that is 1, times a
        line from 1 at the first to `lr_decay` at the last training step.
        """
        learning = self.learning
        warm = min((step + 1) / learning.warmup_steps, 1.0) if learning.warmup_steps else 1.0
        done = min(step / max(learning.training_steps - 1, 1), 1.0)
        return self.learning_rate_scale * warm * (1 - (1 - learning.lr_decay) * done)


def passes(interval: int, before: int, step: int) -> bool:
    """Return whether a multiple of an interval lies in (before, step]; never for interval 0."""
    return interval > 0 and step // interval > before // interval
