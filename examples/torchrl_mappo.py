"""Trains TorchRL's MAPPO on this library's missions: `python examples/torchrl_mappo.py`.

Needs the extra `torchrl`. The actor gets the observation of its UAV, the critic those of all UAVs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.modules import (
    MaskedCategorical,
    MultiAgentConvNet,
    MultiAgentMLP,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, ValueEstimators

from marl_framework.command_line import Parser
from marl_framework.config.errors import ConfigError
from marl_framework.integrations.torchrl import MissionEnv

GROUP = "uavs"


def network(env: MissionEnv, outputs: int, central: bool) -> nn.Module:
    """Return a network with shared weights from [..., N, C, X, Y] to [..., N, outputs]."""
    n, (channels, *shape) = len(env.agent_names), env.missions.observation_shape
    body = MultiAgentConvNet(
        n_agents=n,
        centralized=central,
        share_params=True,
        in_features=channels,
        num_cells=[32, 32],
        kernel_sizes=[5, 4],
        strides=1,
        activation_class=nn.ReLU,
    )
    with torch.no_grad():
        features = body(torch.zeros(1, n, channels, *shape)).shape[-1]
    head = MultiAgentMLP(
        n_agent_inputs=features,
        n_agent_outputs=outputs,
        n_agents=n,
        centralized=False,
        share_params=True,
        num_cells=[64],
        activation_class=nn.ReLU,
    )
    return nn.Sequential(body, head)


def make_loss(env: MissionEnv, device: str) -> tuple[ProbabilisticActor, ClipPPOLoss]:
    """Return the policy and the MAPPO loss."""
    actor = network(env, env.missions.num_actions, central=False).to(device)
    policy = ProbabilisticActor(
        TensorDictModule(actor, [(GROUP, "observation")], [(GROUP, "logits")]),
        in_keys={"logits": (GROUP, "logits"), "mask": (GROUP, "action_mask")},
        out_keys=[(GROUP, "action")],
        distribution_class=MaskedCategorical,
        distribution_kwargs={"use_cross_entropy": False},
        return_log_prob=True,
        log_prob_key=(GROUP, "log_prob"),
    )
    critic = ValueOperator(
        network(env, 1, central=True).to(device),
        in_keys=[(GROUP, "observation")],
        out_keys=[(GROUP, "state_value")],
    )
    loss = ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=0.01)
    names = "reward", "action", "done", "terminated", "value_target", "advantage"
    keys = {name: (GROUP, name) for name in names}
    loss.set_keys(**keys, value=(GROUP, "state_value"), sample_log_prob=(GROUP, "log_prob"))
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.99, lmbda=0.9)
    return policy, loss


def spread_ends(data: TensorDictBase) -> None:
    """Copy the team's `done` and `terminated` [E, T, 1] to every UAV for the value estimator."""
    reward = data["next", GROUP, "reward"]
    for name in ("done", "terminated"):
        data["next", GROUP, name] = data["next", name].unsqueeze(-2).expand_as(reward)


def train(arguments: argparse.Namespace) -> list[float]:
    """Train; return the mean episode return of each iteration."""
    torch.manual_seed(arguments.seed)
    base = MissionEnv(arguments.config, arguments.num_envs, arguments.device, seed=arguments.seed)
    env = TransformedEnv(base, RewardSum(reset_keys=["_reset"]))
    policy, loss = make_loss(base, arguments.device)
    optimizer = torch.optim.Adam(loss.parameters(), lr=arguments.lr)
    frames = arguments.num_envs * base.missions.environment.episode_length  # whole missions
    collector = Collector(
        env, policy, frames_per_batch=frames, total_frames=frames * arguments.iterations
    )
    returns = []
    for iteration, data in enumerate(collector, 1):
        spread_ends(data)
        with torch.no_grad():
            loss.value_estimator(
                data,
                params=loss.critic_network_params,
                target_params=loss.target_critic_network_params,
            )
        data = data.reshape(-1)
        for _ in range(arguments.epochs):
            for rows in torch.randperm(len(data)).split(arguments.minibatch):
                losses = loss(data[rows.to(data.device)])
                total = sum(losses[f"loss_{part}"] for part in ("objective", "critic", "entropy"))
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
        done = data["next", "done"].squeeze(-1)
        returns.append(data["next", GROUP, "episode_reward"][done].mean().item())
        print(f"{iteration:5d}  frames {iteration * frames:8d}  return {returns[-1]:7.3f}")
    collector.shutdown()
    return returns


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(description=__doc__)
    result.add_argument("--config", default="params_fast.yaml", help="params file")
    result.add_argument("--num-envs", type=positive, default=32, help="parallel missions")
    result.add_argument("--iterations", type=positive, default=60)
    result.add_argument("--epochs", type=positive, default=4, help="passes over the data")
    result.add_argument("--minibatch", type=positive, default=128, help="team steps per batch")
    result.add_argument("--lr", type=float, default=5e-4)
    result.add_argument("--device", default="cpu")
    result.add_argument("--seed", type=int, default=1)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Train; exit with a line about an invalid option."""
    command = parser()
    options = command.parse_args(arguments)
    try:
        train(options)
    except ConfigError as error:
        command.error(str(error))


if __name__ == "__main__":
    main()
