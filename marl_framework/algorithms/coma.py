"""COMA: a central action-value critic and a counterfactual baseline."""

from __future__ import annotations

from torch import Tensor, nn

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import select_taken
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.model import Config
from marl_framework.networks.registry import make_critic


class COMAWrapper(ActorCritic):
    """COMA (Foerster et al. 2018): actor, critic and target critic; see `ActorCritic`."""

    def new_critic(self, config: Config) -> nn.Module:
        """Build a critic from maps [B, C_c, X, Y] to values of the UAV's own actions [B, A]."""
        return make_critic(config.networks, config.compute, self.sizes)

    def transitions(self, rollout: Rollout) -> Transitions:
        """Return all transitions of a rollout with their TD(λ) targets."""
        actions = rollout.actions
        values = select_taken(self.evaluate(rollout), actions.flatten()).view_as(actions)
        return Transitions.of(rollout, self.returns(rollout, values))

    def credited(self, part: Transitions) -> Tensor | None:
        """Return the TD(λ) returns, or None to credit actions with the critic's Q(s, a)."""
        return part.targets if self.learning.advantage == "return" else None
