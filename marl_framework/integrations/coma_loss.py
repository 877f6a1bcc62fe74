"""COMA as a TorchRL loss, and a critic for it; import both from `integrations.torchrl`.

Needs the extra `torchrl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from marl_framework.algorithms.losses import (
    actor_loss,
    counterfactual_advantage,
    critic_loss,
    normalized,
    taken,
)
from marl_framework.algorithms.policy import policy_entropy
from marl_framework.integrations.extras import missing_extra

try:
    from tensordict import TensorDict, TensorDictBase, TensorDictParams
    from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
    from tensordict.utils import NestedKey
    from torchrl.objectives import LossModule, ValueEstimators
    from torchrl.objectives.value.functional import td_lambda_return_estimate
except ModuleNotFoundError as error:
    raise missing_extra("torchrl", error) from error


class COMALoss(LossModule):
    """COMA's losses (Foerster et al. 2018, equations 3-5) for TorchRL's collectors.

    Reads batches [..., N] of a team and returns `loss_objective`, `loss_entropy` and
    `loss_critic`, and for the log `entropy`, `advantage_std` and `td_error`. The targets need
    whole rows in time: call `targets(data)` on what a collector returned, [E, T], before it is
    cut into minibatches, as one calls the value estimator of PPO. Without targets the loss
    makes them itself.

    The target critic is `target_critic_network_params`; move it with TorchRL's `SoftUpdate` or
    `HardUpdate`. Keys default to TorchRL's; `set_keys(reward=env.reward_key, …)` renames them.

    Args:
        actor_network: writes integer actions [..., N] drawn from a distribution with `probs`
            [..., N, A], such as Categorical or MaskedCategorical.
        critic_network: writes `action_value` [..., N, A], the value of each own action with the
            others' actions as they are; it may read `action`, but no agent its own.
        entropy_coeff: weight of the entropy bonus.
        critic_coeff: weight of the critic's loss.
        gamma: discount.
        lmbda: trace decay of the TD(λ) targets.
        advantage: what an action is credited with before the counterfactual baseline is taken
            off: "critic", Q(s, a), or "return", its target.
        normalize_advantage: give advantages mean 0 and standard deviation 1 in each batch.
    """

    @dataclass
    class _AcceptedKeys:
        """Names of the entries read and written."""

        action: NestedKey = "action"
        action_value: NestedKey = "action_value"
        value_target: NestedKey = "value_target"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    default_value_estimator = ValueEstimators.TDLambda
    actor_network: ProbabilisticTensorDictSequential
    critic_network: TensorDictModule
    actor_network_params: TensorDictParams
    critic_network_params: TensorDictParams
    target_actor_network_params: TensorDictParams
    target_critic_network_params: TensorDictParams
    out_keys = (
        "loss_objective", "loss_entropy", "loss_critic", "entropy", "advantage_std", "td_error",
    )  # fmt: skip

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: TensorDictModule,
        *,
        entropy_coeff: float = 0.0,
        critic_coeff: float = 1.0,
        gamma: float = 0.99,
        lmbda: float = 0.8,
        advantage: Literal["critic", "return"] = "critic",
        normalize_advantage: bool = False,
    ) -> None:
        super().__init__()
        self.convert_to_functional(actor_network, "actor_network")
        self.convert_to_functional(critic_network, "critic_network", create_target_params=True)
        self.entropy_coeff, self.critic_coeff = entropy_coeff, critic_coeff
        self.gamma, self.lmbda = gamma, lmbda
        self.advantage, self.normalize_advantage = advantage, normalize_advantage

    @property
    def in_keys(self) -> list[NestedKey]:
        """Entries that `forward` reads; targets it must make itself need the networks' `next`."""
        keys = self.tensor_keys
        read = [keys.action, *self.actor_network.in_keys, *self.critic_network.in_keys]
        return list(dict.fromkeys([*read, keys.value_target]))

    def make_value_estimator(self, value_type: Any = None, **hyperparams: float) -> None:
        """Set `gamma` and `lmbda` of the targets, which are always TD(λ).

        Raises:
            ValueError: another estimator or hyperparameter was asked for.
        """
        unknown = set(hyperparams) - {"gamma", "lmbda"}
        if value_type not in (None, ValueEstimators.TDLambda) or unknown:
            raise ValueError("COMALoss has TD(λ) targets with gamma and lmbda, nothing else")
        for name, value in hyperparams.items():
            setattr(self, name, value)

    @torch.no_grad()
    def targets(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write TD(λ) targets [..., T, N, 1] of the target critic into data [..., T].

        G_t = r_t + γ·[(1 - λ)·Q̄_{t+1} + λ·G_{t+1}] with Q̄ of the actions taken, as in
        :func:`~marl_framework.algorithms.losses.td_lambda_returns`. Where an episode goes on and
        the data does not (the last column, a truncation), G_{t+1} is Σ_a π(a)·Q̄(a) in the state
        that follows, the others' actions drawn from the policy.
        """
        keys = self.tensor_keys
        after = tensordict.get("next")
        reward = after.get(keys.reward)
        done = _like(after.get(keys.done), reward).clone()
        terminated = _like(after.get(keys.terminated), reward)
        q_taken = taken(self._values(tensordict, target=True), tensordict.get(keys.action))
        following = torch.cat((q_taken[..., 1:, :], q_taken[..., -1:, :]), dim=-2).unsqueeze(-1)
        done[..., -1, :, :] = True
        beyond = torch.where(done, self._beyond(after), following)
        target = td_lambda_return_estimate(
            self.gamma, self.lmbda, beyond, reward, done, terminated, time_dim=-3
        )
        return tensordict.set(keys.value_target, target)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the losses, means over the batch."""
        keys = self.tensor_keys
        target = tensordict.get(keys.value_target, None)
        if target is None:
            target = self.targets(tensordict.copy()).get(keys.value_target)
        actions, target = tensordict.get(keys.action).flatten(), target.flatten()
        values = self._values(tensordict).flatten(0, -2)
        probabilities = self._probabilities(tensordict).flatten(0, -2)
        advantages = counterfactual_advantage(
            values.detach(),
            probabilities.detach(),
            actions,
            target if self.advantage == "return" else None,
        )
        weights = normalized(advantages) if self.normalize_advantage else advantages
        entropy = policy_entropy(probabilities).mean()
        with torch.no_grad():
            td_error = (taken(values, actions) - target).abs().mean()
        return TensorDict(
            {
                "loss_objective": actor_loss(probabilities, actions, weights, 0.0),
                "loss_entropy": -self.entropy_coeff * entropy,
                "loss_critic": self.critic_coeff * critic_loss(values, actions, target),
                "entropy": entropy.detach(),
                "advantage_std": advantages.std(),
                "td_error": td_error,
            }
        )

    def _probabilities(self, tensordict: TensorDictBase) -> Tensor:
        """Return π of the actor, [..., N, A]."""
        seen = tensordict.select(*self.actor_network.in_keys)
        with self.actor_network_params.to_module(self.actor_network):
            return self.actor_network.get_dist(seen).probs

    def _values(self, tensordict: TensorDictBase, target: bool = False) -> Tensor:
        """Return Q of each own action, [..., N, A]."""
        seen = tensordict.select(*self.critic_network.in_keys)
        params = self.target_critic_network_params if target else self.critic_network_params
        with params.to_module(self.critic_network):
            return self.critic_network(seen).get(self.tensor_keys.action_value)

    def _beyond(self, after: TensorDictBase) -> Tensor:
        """Return Σ_a π(a)·Q̄(a) of the states that follow, [..., N, 1]."""
        probabilities = self._probabilities(after)
        drawn = torch.distributions.Categorical(probs=probabilities).sample()
        after = after.copy().set(self.tensor_keys.action, drawn)
        return (probabilities * self._values(after, target=True)).sum(-1, keepdim=True)

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        """The targets read `tensor_keys` themselves."""


class CounterfactualCritic(nn.Module):
    """Q(s, ·) of each agent's own actions from all observations and the others' actions.

    The input of agent i is every agent's observation and every other agent's action one-hot; its
    own is zero, which tells the shared network whose values are asked for (Foerster et al. 2018,
    section 4).

    Args:
        num_features: F, length of an observation.
        n_agents: N.
        num_actions: A.
        hidden: width of the two hidden layers.
    """

    def __init__(
        self, num_features: int, n_agents: int, num_actions: int, hidden: int = 128
    ) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.net = nn.Sequential(
            nn.Linear(n_agents * (num_features + num_actions), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_actions),
        )
        self._others: Tensor
        self.register_buffer("_others", 1 - torch.eye(n_agents), persistent=False)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Map observations [..., N, F] and actions [..., N] to values [..., N, A]."""
        n = action.shape[-1]
        lead = action.shape[:-1]
        seen = observation.flatten(-2).unsqueeze(-2).expand(*lead, n, -1)
        one_hot = nn.functional.one_hot(action, self.num_actions).to(seen.dtype)
        acts = (one_hot.unsqueeze(-3) * self._others.unsqueeze(-1)).flatten(-2)
        values: Tensor = self.net(torch.cat((seen, acts), dim=-1))
        return values


def _like(flag: Tensor, reward: Tensor) -> Tensor:
    """Give a team's flag [..., 1] the agents' axis of rewards [..., N, 1]."""
    return (flag if flag.dim() == reward.dim() else flag.unsqueeze(-2)).expand_as(reward)
