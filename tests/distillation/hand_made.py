"""Teachers that are easy to foresee."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision


class Scored:
    """Flies to where a score is highest."""

    name = "scored"

    def __init__(self, lattice: Lattice, says: str = "scores") -> None:
        self.lattice = lattice
        self.says = says

    def goals(self, state: MissionState) -> Tensor:
        """Destinations of all actions, those beyond the lattice moved to its edge."""
        return self.lattice.nearest_destinations(state.positions)

    def scores(self, state: MissionState) -> Tensor:
        """The belief at the destination: as good in a turned mission."""
        cells = self.lattice.cells(self.goals(state))
        return 10 * state.pooled_beliefs.flatten(2).gather(2, cells)

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        scores = self.scores(state)

        def choose(i: int, mask: Tensor) -> Tensor:
            return scores[:, i].masked_fill(~mask, -torch.inf).argmax(-1)

        actions, masks = self.lattice.choose_in_order(state.positions, choose)
        if self.says == "nothing":
            return Decision(actions, masks)
        policy = scores.masked_fill(~masks, -torch.inf).softmax(-1)
        if self.says == "policy":
            return Decision(actions, masks, probabilities=policy)
        return Decision(actions, masks, scores=scores * masks)


class ToTheCorner(Scored):
    """Flies to the corner (0, 0), and down."""

    def scores(self, state: MissionState) -> Tensor:
        return -(self.goals(state) * torch.tensor((3.0, 2.0, 1.0))).sum(-1)


def corner(environment: MissionEnvironment) -> ToTheCorner:
    return ToTheCorner(environment.lattice)


def nonsense(environment: MissionEnvironment) -> ToTheCorner:
    planner = ToTheCorner(environment.lattice)
    planner.act = lambda state, generator: "north"
    return planner


def mute(environment: MissionEnvironment) -> ToTheCorner:
    planner = ToTheCorner(environment.lattice)
    planner.scores = lambda state: ToTheCorner.scores(planner, state) * torch.nan
    return planner


def decided(environment: MissionEnvironment) -> Scored:
    return Scored(environment.lattice, "nothing")
