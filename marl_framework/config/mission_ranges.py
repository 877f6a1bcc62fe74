"""Values that missions draw from, and the sizes that follow for tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from marl_framework.config.mission import ExperimentConfig
from marl_framework.config.types import choices


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
