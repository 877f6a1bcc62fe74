"""Common interface of trained and classical planners."""

from __future__ import annotations

from typing import NamedTuple, Protocol

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
    """Policy, if the planner has one, [E, N, A]."""
    scores: Tensor | None = None
    """Scores of the actions, if the planner ranks them, [E, N, A]; 0 where masked."""


class Planner(Protocol):
    """Chooses the next action of every UAV in a batch of missions."""

    name: str
    """Name in tables, files and figures."""

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV.

        Args:
            state: E missions of N UAVs; a planner must not change it.
            generator: generator of the planner's random choices, on the state's device.
        """
        ...
