"""Random flight, the weakest baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision


class RandomPlanner:
    """Chooses uniformly among the allowed actions."""

    name = "random"

    def __init__(self, lattice: Lattice) -> None:
        self._lattice = lattice

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""

        def choose(_: int, mask: Tensor) -> Tensor:
            draws = torch.rand(mask.shape, generator=generator, device=mask.device)
            # The argmax of independent uniform draws is uniform over the allowed actions.
            return draws.masked_fill(~mask, -1).argmax(-1)

        return Decision(*self._lattice.choose_in_missions(state, choose))


def make(environment: MissionEnvironment) -> RandomPlanner:
    """Create the planner for an environment."""
    return RandomPlanner(environment.lattice)
