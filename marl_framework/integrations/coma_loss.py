"""COMA as a TorchRL loss, and a critic for COMA. Import both from `integrations.torchrl`.

Requires the extra `torchrl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from marl_framework.algorithms import losses
from marl_framework.algorithms.policy import policy_entropy
from marl_framework.algorithms.ranks import normalized
from marl_framework.integrations import missing_extra

try:
    from tensordict import TensorDict, TensorDictBase, TensorDictParams
    from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
    from tensordict.utils import NestedKey
    from torchrl.objectives import LossModule, ValueEstimators
    from torchrl.objectives.value.functional import td_lambda_return_estimate
except ModuleNotFoundError as error:
    raise missing_extra("torchrl", error) from error


class COMALoss(LossModule):
    """COMA's losses (Foerster et al. 2018, equations 3-5) for data of TorchRL's collectors.

    The loss reads a team's batches [..., N]. It returns `loss_objective`, `loss_entropy` and
    `loss_critic`, and for logging `entropy`, `advantage_std` and `td_error`. TD(λ) targets need
    whole trajectories: call `targets(data)` on collected data [E, T] before you split the data into
    minibatches. If the targets are missing, the loss computes them from the batch. All agents count
    equally: the loss ignores the entry `mask`, which marks the UAVs that fly.

    Update the target critic with TorchRL's `SoftUpdate` or `HardUpdate`. Keys default to TorchRL's;
    `set_keys(reward=env.reward_key, …)` renames keys.

    Args:
        actor_network: network that writes integer actions [..., N], sampled from a distribution
            with `probs` [..., N, A], such as Categorical or MaskedCategorical.
        critic_network: network that writes `action_value` [..., N, A]: for each agent the values
            of its own actions, given the other agents' actions. The network may read `action`, but
            an agent's values must not depend on the agent's own action.
        entropy_coeff: weight of the entropy bonus.
        critic_coeff: weight of the critic loss.
        gamma: discount factor.
        lmbda: λ of the TD(λ) targets.
        advantage: value from which the counterfactual baseline is subtracted: "critic" for
            Q(s, a), "return" for the TD(λ) target.
        normalize_advantage: whether to normalise the advantages of each batch (mean 0, standard
            deviation 1).

    Raises:
        ValueError: `gamma`, `lmbda` or `advantage` is invalid, or an entry of the data is missing.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys of the entries that the loss reads and writes."""

        action: NestedKey = "action"
        action_value: NestedKey = "action_value"
        value_target: NestedKey = "value_target"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    gamma: float
    lmbda: float
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
        if advantage not in ("critic", "return"):
            raise ValueError(f"advantage {advantage!r}: must be 'critic' or 'return'")
        self.convert_to_functional(actor_network, "actor_network")
        self.convert_to_functional(critic_network, "critic_network", create_target_params=True)
        self.entropy_coeff, self.critic_coeff = entropy_coeff, critic_coeff
        self.make_value_estimator(gamma=gamma, lmbda=lmbda)
        self.advantage, self.normalize_advantage = advantage, normalize_advantage

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that `forward` reads; if targets are missing, it also reads entries of `next`."""
        keys = self.tensor_keys
        read = [keys.action, *self.actor_network.in_keys, *self.critic_network.in_keys]
        return list(dict.fromkeys([*read, keys.value_target]))

    def make_value_estimator(self, value_type: Any = None, **hyperparams: float) -> None:
        """Set `gamma` and `lmbda` of the TD(λ) targets; raise ValueError for other settings."""
        unknown = set(hyperparams) - {"gamma", "lmbda"}
        if value_type not in (None, ValueEstimators.TDLambda) or unknown:
            raise ValueError("COMALoss supports only TDLambda targets with gamma and lmbda")
        for name, value in hyperparams.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} {value}: must be 0 to 1")
            setattr(self, name, value)

    @torch.no_grad()
    def targets(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Add TD(λ) targets [..., T, N, 1], computed with the target critic, to data [..., T].

        G_t = r_t + γ·[(1 - λ)·Q̄_{t+1} + λ·G_{t+1}], with Q̄ evaluated at the actions taken, as in
        :func:`~marl_framework.algorithms.losses.td_lambda_returns`. Where the data ends before
        the episode (last step, truncation), G_{t+1} is Σ_a π(a)·Q̄(a) in the next state, with the
        other agents' actions sampled from the policy.
        """
        after = tensordict.get("next")
        reward = self._entry(after, "reward")
        done = _expand_flag(self._entry(after, "done"), reward).clone()
        terminated = _expand_flag(self._entry(after, "terminated"), reward)
        q_taken = losses.select_taken(
            self._values(tensordict, target=True), self._entry(tensordict, "action")
        )
        q_next = torch.cat((q_taken[..., 1:, :], q_taken[..., -1:, :]), dim=-2).unsqueeze(-1)
        done[..., -1, :, :] = True
        next_values = torch.where(done, self._bootstrap_values(after), q_next)
        target = td_lambda_return_estimate(
            self.gamma, self.lmbda, next_values, reward, done, terminated, time_dim=-3
        )
        return tensordict.set(self.tensor_keys.value_target, target)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the losses as means over the batch."""
        key = self.tensor_keys.value_target
        target = tensordict.get(key, None)
        if target is None:
            target = self.targets(tensordict.copy()).get(key)
        actions, target = self._entry(tensordict, "action").flatten(), target.flatten()
        values = self._values(tensordict).flatten(0, -2)
        probabilities = self._probabilities(tensordict).flatten(0, -2)
        returns = target if self.advantage == "return" else None
        advantages = losses.counterfactual_advantage(
            values.detach(), probabilities.detach(), actions, returns
        )
        weights = normalized(advantages) if self.normalize_advantage else advantages
        entropy = policy_entropy(probabilities).mean()
        with torch.no_grad():
            td_error = (losses.select_taken(values, actions) - target).abs().mean()
        return TensorDict(
            {
                "loss_objective": losses.actor_loss(probabilities, actions, weights, 0.0),
                "loss_entropy": -self.entropy_coeff * entropy,
                "loss_critic": self.critic_coeff * losses.critic_loss(values, actions, target),
                "entropy": entropy.detach(),
                "advantage_std": advantages.std(),
                "td_error": td_error,
            }
        )

    def _entry(self, tensordict: TensorDictBase, name: str) -> Tensor:
        """Return the entry of a key in `tensor_keys`; raise ValueError if it is missing."""
        key = getattr(self.tensor_keys, name)
        entry = tensordict.get(key, None)
        if entry is None:
            raise ValueError(f"{name}: no entry {key!r}; name the entry with set_keys({name}=KEY)")
        return entry

    def _probabilities(self, tensordict: TensorDictBase) -> Tensor:
        inputs = tensordict.select(*self.actor_network.in_keys)
        with self.actor_network_params.to_module(self.actor_network):
            return self.actor_network.get_dist(inputs).probs

    def _values(self, tensordict: TensorDictBase, target: bool = False) -> Tensor:
        """Return the critic's action values, [..., N, A]."""
        inputs = tensordict.select(*self.critic_network.in_keys)
        params = self.target_critic_network_params if target else self.critic_network_params
        with params.to_module(self.critic_network):
            return self._entry(self.critic_network(inputs), "action_value")

    def _bootstrap_values(self, after: TensorDictBase) -> Tensor:
        """Return Σ_a π(a)·Q̄(a) in the next states, [..., N, 1]."""
        probabilities = self._probabilities(after)
        drawn = torch.distributions.Categorical(probs=probabilities).sample()
        after = after.copy().set(self.tensor_keys.action, drawn)
        return (probabilities * self._values(after, target=True)).sum(-1, keepdim=True)

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        """Do nothing: `targets` reads `tensor_keys` directly."""


class CounterfactualCritic(nn.Module):
    """COMA's critic: Q-values of each agent's actions, given the other agents' actions.

    The input for agent i contains all observations and all one-hot actions, with zeros for agent
    i's own action. The zeros show the shared network which agent it evaluates (Foerster et al.
    2018, section 4).

    Args:
        num_features: number of features per observation, F.
        n_agents: number of agents, N.
        num_actions: number of actions, A.
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
        observations = observation.flatten(-2).unsqueeze(-2).expand(*action.shape, -1)
        one_hot = nn.functional.one_hot(action, self.num_actions).to(observations.dtype)
        others = (one_hot.unsqueeze(-3) * self._others.unsqueeze(-1)).flatten(-2)
        values: Tensor = self.net(torch.cat((observations, others), dim=-1))
        return values


def _expand_flag(flag: Tensor, reward: Tensor) -> Tensor:
    """Expand a team's flag [..., 1] to the shape of the rewards [..., N, 1]."""
    return (flag if flag.dim() == reward.dim() else flag.unsqueeze(-2)).expand_as(reward)
