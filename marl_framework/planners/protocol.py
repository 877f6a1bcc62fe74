"""What every planner offers: the same interface for trained and classical ones."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from marl_framework.mission.state import MissionState


class Decision(NamedTuple):
    """What a planner decided for every UAV."""

    actions: Tensor
    """[E, N] int64."""
    masks: Tensor
    """Which actions were allowed when each UAV chose, [E, N, A] bool."""
    probabilities: Tensor | None = None
    """Of a planner that draws: the policy it drew from, [E, N, A]."""
    scores: Tensor | None = None
    """Of a planner that compares actions: what it thinks of each, [E, N, A]; 0 where masked."""


class Planner(Protocol):
    """Chooses the next action of every UAV in a batch of missions.

    Attributes:
        name: how tables, files and figures call the planner.
    """

    name: str

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV.

        Args:
            state: E missions of N UAVs; it is read, never changed.
            generator: source of the planner's own randomness, on the state's device.
        """
        ...
