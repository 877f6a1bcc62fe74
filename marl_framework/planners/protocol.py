"""Common interface of trained and classical planners."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from marl_framework.mission.state import MissionState


class Decision(NamedTuple):
    """Actions of all UAVs, and the policy or scores behind them."""

    actions: Tensor
    """Chosen actions, [E, N] int64."""
    masks: Tensor
    """Actions that were allowed when each UAV chose, [E, N, A] bool."""
    probabilities: Tensor | None = None
    """Action probabilities of a stochastic policy, [E, N, A]; None for other planners."""
    scores: Tensor | None = None
    """Scores by which the planner ranks actions, [E, N, A]; 0 where masked; None without scores."""


class Planner(Protocol):
    """Chooses the next action of every UAV in a batch of missions."""

    name: str
    """Name in tables, files and figures."""

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV.

        Args:
            state: state of E missions with N UAVs; a planner must not modify the state.
            generator: random number generator of the planner, on the state's device.
        """
        ...


@runtime_checkable
class SharingPlanner(Planner, Protocol):
    """Planner whose UAVs know each other's plans, and which can decide for a single UAV."""

    own: int | None
    """UAV to decide for, in a single mission; the plans of all others come from `hear`. None to
    decide for all UAVs."""
    plan: Tensor
    """Plan of UAV `own` after `act`, [X, Y] float32."""

    def hear(self, uav: int, plan: Tensor) -> None:
        """Take the plan [X, Y] of another UAV.

        Before `act`, a UAV with a lower number than `own` has planned its next move; one with a
        higher number its last move.
        """
        ...
