"""A trained team as a planner."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from marl_framework.algorithms.policy import best_actions, policy_probabilities, sample_actions
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners.protocol import Decision


class LearnedPlanner:
    """Flies with a trained actor, without exploration noise.

    Args:
        act: maps observations [E, N, C, X, Y] to logits [E, N, A]; an algorithm's `act`.
        builder: builds the actor's observations.
        lattice: lattice of the missions.
        greedy: whether to take the most probable allowed action instead of sampling the policy.
    """

    name = "learned"

    def __init__(
        self,
        act: Callable[[Tensor], Tensor],
        builder: ObservationBuilder,
        lattice: Lattice,
        greedy: bool = True,
    ) -> None:
        self._act, self._greedy = act, greedy
        self._builder, self._lattice = builder, lattice

    @torch.no_grad()
    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        logits = self._act(self._builder.actor(state))

        def choose(i: int, mask: Tensor) -> Tensor:
            if self._greedy:
                return best_actions(logits[:, i], mask)
            uniform = torch.rand(mask.shape, generator=generator, device=mask.device)
            return sample_actions(policy_probabilities(logits[:, i], mask, 0.0), uniform, mask)

        actions, masks = self._lattice.choose_in_missions(state, choose)
        return Decision(actions, masks, policy_probabilities(logits, masks, 0.0))
