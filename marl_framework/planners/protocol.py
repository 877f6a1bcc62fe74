"""What every planner offers: the same interface for trained and classical ones."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from marl_framework.mission.state import MissionState


class Planner(Protocol):
    """Chooses the next action of every UAV in a batch of missions.

    Attributes:
        name: how tables, files and figures call the planner.
    """

    name: str

    def act(self, state: MissionState, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Choose an action for each UAV.

        Args:
            state: E missions of N UAVs; it is read, never changed.
            generator: source of the planner's own randomness, on the state's device.

        Returns:
            Actions [E, N] int64 and the masks they were chosen under, [E, N, A] bool.
        """
        ...
