"""Lattice, map, mission ranges and schedule, derived from configuration sections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from marl_framework.config.learning import LearningConfig
from marl_framework.config.mission import (
    ConstraintsConfig,
    EnvironmentConfig,
    ExperimentConfig,
    SensorConfig,
)
from marl_framework.config.types import choices


class Geometry:
    """Lattice and map of a mission; order x, y.

    Attributes:
        lattice_shape: number of lattice positions, (X, Y, Z).
        altitudes: altitudes of the lattice [m], lowest first.
        cell_size: cell size of the map, (res_x, res_y) [m].
        map_shape: number of map cells, (R, C).
        square_footprints: whether footprints are square.
        quarter_turns: whether area and footprints are square, so quarter turns are symmetries.
    """

    def __init__(
        self, area: EnvironmentConfig, limits: ConstraintsConfig, sensor: SensorConfig
    ) -> None:
        low, spacing = limits.min_altitude, limits.spacing
        view, pixel = sensor.field_of_view, sensor.pixel
        angles, pixels = (view.angle_x, view.angle_y), (pixel.number_x, pixel.number_y)
        sides = (area.x_dim, area.y_dim)
        cell_x, cell_y = (
            2 * low * math.tan(math.radians(angle) / 2) / number
            for angle, number in zip(angles, pixels, strict=True)
        )
        x, y = (math.floor(side / spacing + 1e-9) + 1 for side in sides)
        levels = round((limits.max_altitude - low) / spacing) + 1
        self.lattice_shape = (x, y, levels)
        self.altitudes = tuple(low + k * spacing for k in range(levels))
        self.cell_size = (cell_x, cell_y)
        rows, cols = math.floor(area.x_dim / cell_x + 1e-9), math.floor(area.y_dim / cell_y + 1e-9)
        self.map_shape = (rows, cols)
        self.square_footprints = all(a == b for a, b in (angles, pixels))
        self.quarter_turns = self.square_footprints and area.x_dim == area.y_dim


class MissionRanges:
    """Values that missions draw from.

    Attributes:
        team_sizes: possible numbers of UAVs.
        budgets: possible budgets; a mission has budget + 1 moves.
        cost_limits: possible cost limits of UAVs; infinite if there is no limit.
        has_cost: whether a cost limit applies.
        has_crashes: whether UAVs may crash.
        has_delays: whether messages may arrive late.
        has_zones: whether a field, no-fly zones or obstacles close moves.
        drawn: values of each key that has more than one; each mission draws one.
        keys_that_end_missions: keys that make missions end at different times.
        has_inactive: whether UAVs may be inactive.
        most_agents: number of UAVs of the largest team, N.
        episode_length: number of moves of the longest mission, T = budget + 1.
    """

    def __init__(self, experiment: ExperimentConfig, field: str | None = None) -> None:
        limits, uav = experiment.constraints, experiment.uav
        cost = limits.cost.limit
        self.team_sizes = choices(experiment.missions.n_agents)
        self.budgets = choices(limits.budget)
        self.cost_limits = (math.inf,) if cost is None else choices(cost)
        self.has_cost = cost is not None
        self.has_crashes = max(choices(uav.crash_rate)) > 0
        self.has_delays = max(choices(uav.delay)) > 0
        has_polygons = field is not None or limits.no_fly_zones is not None
        self.has_zones = has_polygons or limits.obstacles.number > 0
        values = {
            "experiment.missions.n_agents": self.team_sizes,
            "experiment.constraints.budget": self.budgets,
            "experiment.uav.communication_range": choices(uav.communication_range),
            "experiment.uav.failure_rate": choices(uav.failure_rate),
            "experiment.uav.crash_rate": choices(uav.crash_rate),
        }
        self.drawn = {key: drawn for key, drawn in values.items() if len(set(drawn)) > 1}
        ending = {
            "experiment.constraints.budget": len(set(self.budgets)) > 1,
            "experiment.constraints.cost.limit": self.has_cost,
            "experiment.uav.crash_rate": self.has_crashes,
        }
        self.keys_that_end_missions = tuple(key for key, ends in ending.items() if ends)
        self.has_inactive = len(set(self.team_sizes)) > 1 or bool(self.keys_that_end_missions)
        self.most_agents = max(self.team_sizes)
        self.episode_length = max(self.budgets) + 1


class Schedule:
    """Numbers of missions and transitions in a training step, over all ranks.

    `missions` has an entry for each area; areas are drawn equally often.

    Attributes:
        transitions_per_mission: mean number of moves of all UAVs, without costs and crashes.
        rollouts_per_step: number of rollouts that fill the batches of a training step.
        transitions_per_step: mean number of transitions per training step.
        transitions_per_batch: mean number of transitions per update of the networks.
        places_per_step: number of transitions if all teams and missions had maximum size.
        learning_rate_scale: factor of the learning rates, see `learning.lr_scaling`. The ratio of
            batch size to `lr_base_batch` (`linear`: Goyal et al. 2017, section 2.1), its square
            root (`sqrt`, for Adam: Malladi et al. 2022), or 1 (`none`).
    """

    def __init__(
        self, missions: Sequence[MissionRanges], num_envs: int, learning: LearningConfig
    ) -> None:
        self._learning = learning
        flown = [_mean(each.team_sizes) * (_mean(each.budgets) + 1) for each in missions]
        self.transitions_per_mission = _mean(flown)
        needed = learning.batch_size * learning.batch_number
        self.rollouts_per_step = math.ceil(needed / (num_envs * self.transitions_per_mission))
        missions_per_step = self.rollouts_per_step * num_envs
        self.transitions_per_step = round(missions_per_step * self.transitions_per_mission)
        batches = min(learning.batch_number, self.transitions_per_step)
        self.transitions_per_batch = self.transitions_per_step / batches
        places = max(each.most_agents * each.episode_length for each in missions)
        self.places_per_step = missions_per_step * places
        share = self.transitions_per_batch / learning.lr_base_batch
        scales = {"none": 1.0, "sqrt": math.sqrt(share), "linear": share}
        self.learning_rate_scale = scales[learning.lr_scaling]

    def learning_rate_factor(self, step: int) -> float:
        """Return the factor of the configured learning rates at a training step.

        The factor is `learning_rate_scale`, times (step + 1) / `warmup_steps` (at most 1), times a
        linear decay from 1 at the first to `lr_decay` at the last training step.
        """
        learning = self._learning
        warmup = min((step + 1) / learning.warmup_steps, 1.0) if learning.warmup_steps else 1.0
        progress = min(step / max(learning.training_steps - 1, 1), 1.0)
        return self.learning_rate_scale * warmup * (1 - (1 - learning.lr_decay) * progress)


def _mean(values: Sequence[int] | Sequence[Fraction]) -> Fraction:
    return Fraction(sum(values), len(values))


def passes(interval: int, before: int, step: int) -> bool:
    """Return whether a multiple of `interval` lies in (before, step]; False for interval 0."""
    return interval > 0 and step // interval > before // interval
