"""Teachers that are easy to foresee."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.reward import Utility
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision


class Scored:
    """Flies to where the belief is highest, as good in a turned mission."""

    name = "scored"

    def __init__(self, environment: MissionEnvironment, says: str = "scores") -> None:
        self.lattice, self.says = environment.lattice, says

    def scores(self, state: MissionState) -> Tensor:
        cells = self.lattice.cells(self.lattice.nearest_destinations(state.positions))
        return 10 * state.pooled_beliefs.flatten(2).gather(2, cells)

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        scores = self.scores(state)

        def choose(i: int, mask: Tensor) -> Tensor:
            return scores[:, i].masked_fill(~mask, -torch.inf).argmax(-1)

        actions, masks = self.lattice.choose_in_order(state.positions, choose)
        if self.says == "nothing":
            return Decision(actions, masks)
        if self.says == "policy":
            return Decision(actions, masks, scores.masked_fill(~masks, -torch.inf).softmax(-1))
        return Decision(actions, masks, scores=scores * masks)


class ToTheCorner(Scored):
    def scores(self, state: MissionState) -> Tensor:
        goals = self.lattice.nearest_destinations(state.positions)
        return -(goals * torch.tensor((3.0, 2.0, 1.0))).sum(-1)


class Nonsense(ToTheCorner):
    def act(self, state: MissionState, generator: torch.Generator) -> str:
        return "north"


class Mute(ToTheCorner):
    def scores(self, state: MissionState) -> Tensor:
        return super().scores(state) * torch.nan


def decided(environment: MissionEnvironment) -> Scored:
    return Scored(environment, "nothing")


def not_a_number(state: MissionState, actions: Tensor, utility: Utility) -> Tensor:
    """Reward that is not finite."""
    return utility.relative * torch.nan
