"""QMIX (Rashid et al. 2018, arXiv 1803.11485) with replayed missions."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import select_taken
from marl_framework.algorithms.policy import Floor, best_actions
from marl_framework.algorithms.ranks import mean_of
from marl_framework.algorithms.replay import Replayed
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.state_values import make_partial_critic
from marl_framework.config.model import Config

WIDTH = 32
"""Number of hidden units of the mixing network, as in the paper."""


def mix(values: Tensor, outputs: Tensor, active: Tensor) -> Tensor:
    """Return Q_tot [...] of a team, which rises with the value of each UAV.

    Q_tot = w2 · ELU(Σ_i w1_i·Q_i + b1) + v (equations 6 and 7 of the paper), where w1_i = |…| of
    UAV i, and w2 = |…|, b1 and v are means over the UAVs; so teams may have any size and order.

    Args:
        values: Q_i of the actions taken, [..., N].
        outputs: outputs of the critic for each UAV, [..., N, 3·WIDTH + 1].
        active: UAVs that count, [..., N] bool.
    """
    share = active / active.sum(-1, keepdim=True).clamp(min=1)
    first, bias, second, value = outputs.split((WIDTH, WIDTH, WIDTH, 1), dim=-1)
    hidden = first.abs() * (active * values).unsqueeze(-1) + share.unsqueeze(-1) * bias
    mixed = elu(hidden.sum(-2)) * (share.unsqueeze(-1) * second.abs()).sum(-2)
    return mixed.sum(-1) + (share * value.squeeze(-1)).sum(-1)


class QMIX(Replayed):
    """Learner of joint values Q_tot that rise with the value Q_i(o, a) of each UAV.

    The actor's logits are Q_i / `learning.temperature`, so that the policy explores by Boltzmann's
    distribution. The critic computes the weights of `mix`, and sees no actions. Both minimise
    (Q_tot - target)², averaged over the moves flown.

    Attributes:
        target_actor: slow copy of the actor, updated with the target critic.
    """

    joint = True

    def __init__(self, config: Config, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self.target_actor = deepcopy(self.actor).requires_grad_(False)
        self.modules["target_actor"] = self.target_actor
        self._targets.append((self.target_actor, self.actor))

    def new_critic(self, config: Config) -> nn.Module:
        """Build a critic from maps [B, C_c, X, Y] to weights of `mix`, [B, 3·WIDTH + 1]."""
        hidden = self.sizes.action_channels
        return make_partial_critic(config, self.sizes, hidden, outputs=3 * WIDTH + 1)

    @torch.no_grad()
    def targets(self, rollout: Rollout, epsilon: Floor) -> Tensor:
        """Compute Q(λ) targets [T, E, N] (Peng & Williams 1996); a team shares them.

        G_t = r_t + γ·[(1 - λ)·Q̄_tot(s_t+1, a*) + λ·G_t+1]. a* are the actor's best actions, which
        the target networks value (van Hasselt et al. 2016). The floor ε is ignored.
        """
        best = best_actions(self.logits(self.actor, rollout), rollout.masks)
        active = torch.ones_like(best).bool() if rollout.active is None else rollout.active
        values = self._values(self.logits(self.target_actor, rollout), best)
        outputs = self.evaluate(rollout).unflatten(0, best.shape)
        mixed = mix(values, outputs.float(), active).unsqueeze(-1)  # [T, E, 1]
        team = replace(rollout, active=active.any(-1, keepdim=True))
        return self.returns(team, mixed).expand(best.shape)

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return the mean of (Q_tot - target)²; the values Q_i are constants."""
        with torch.no_grad(), self._amp():
            logits = self.actor(part.observations)
        return self._loss(outputs, logits, part)

    def policy_loss(
        self, logits: Tensor, part: Transitions, outputs: Tensor, credit: Tensor, epsilon: Floor
    ) -> Tensor:
        """Return the mean of (Q_tot - target)²; the critic's `outputs` are constants."""
        return self._loss(outputs, logits, part)

    def policy_values(self, outputs: Tensor, logits: Tensor, part: Transitions) -> Tensor:
        """Return Q_tot of the actions taken, repeated for all actions, [B, A]."""
        mixed = self._mixed(outputs, logits, part)
        return mixed.unsqueeze(1).expand(logits.shape).contiguous()

    def _loss(self, outputs: Tensor, logits: Tensor, part: Transitions) -> Tensor:
        return mean_of((self._mixed(outputs, logits, part) - part.targets).square(), part.weights)

    def _mixed(self, outputs: Tensor, logits: Tensor, part: Transitions) -> Tensor:
        """Return Q_tot of the actions taken, repeated for the UAVs of each team, [B]."""
        values, team = self._values(logits, part.actions), (-1, part.team)
        active = torch.ones_like(part.actions).bool() if part.counted is None else part.counted
        joint = (each.unflatten(0, team) for each in (values, outputs.float(), active))
        return mix(*joint).repeat_interleave(part.team)

    def _values(self, logits: Tensor, actions: Tensor) -> Tensor:
        """Return Q_i [...] of actions [...]."""
        return self.learning.temperature * select_taken(logits.float(), actions)
