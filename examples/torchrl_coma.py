"""Trains COMALoss on a VMAS scenario with TorchRL: `python examples/torchrl_coma.py`.

Needs the extra `torchrl`, and VMAS: `pip install vmas`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import RewardSum, TransformedEnv, VmasEnv
from torchrl.modules import MultiAgentMLP, ProbabilisticActor
from torchrl.objectives import SoftUpdate

from marl_framework.command_line import Parser
from marl_framework.integrations.torchrl import COMALoss, CounterfactualCritic

GROUP = "agents"


def make_loss(env: VmasEnv, device: str) -> tuple[ProbabilisticActor, COMALoss]:
    """Return the policy and the COMA loss."""
    n, features = env.full_observation_spec_unbatched[GROUP, "observation"].shape
    actions = env.full_action_spec_unbatched[GROUP, "action"].space.n
    actor = MultiAgentMLP(
        n_agent_inputs=features,
        n_agent_outputs=actions,
        n_agents=n,
        centralized=False,
        share_params=True,
        num_cells=[64, 64],
        activation_class=nn.Tanh,
        device=device,
    )
    policy = ProbabilisticActor(
        TensorDictModule(actor, [(GROUP, "observation")], [(GROUP, "logits")]),
        in_keys={"logits": (GROUP, "logits")},
        out_keys=[(GROUP, "action")],
        distribution_class=Categorical,
    )
    critic = TensorDictModule(
        CounterfactualCritic(features, n, actions).to(device),
        [(GROUP, "observation"), (GROUP, "action")],
        [(GROUP, "action_value")],
    )
    loss = COMALoss(
        policy,
        critic,
        entropy_coeff=0.01,
        gamma=0.95,
        advantage="return",
        normalize_advantage=True,
    )
    names = "action", "reward", "action_value", "value_target"
    loss.set_keys(**{name: (GROUP, name) for name in names})
    return policy, loss


def train(arguments: argparse.Namespace) -> list[float]:
    """Train; return the mean episode return of each iteration."""
    torch.manual_seed(arguments.seed)
    base = VmasEnv(
        scenario=arguments.scenario,
        num_envs=arguments.num_envs,
        continuous_actions=False,
        max_steps=arguments.steps,
        device=arguments.device,
        seed=arguments.seed,
    )
    rewards = RewardSum(in_keys=[(GROUP, "reward")], reset_keys=["_reset"])
    env = TransformedEnv(base, rewards)
    policy, loss = make_loss(base, arguments.device)
    optimizer = torch.optim.Adam(loss.parameters(), lr=arguments.lr)
    target = SoftUpdate(loss, tau=0.02)
    frames = arguments.num_envs * arguments.steps
    collector = Collector(
        env, policy, frames_per_batch=frames, total_frames=frames * arguments.iterations
    )
    returns = []
    for iteration, data in enumerate(collector, 1):
        data = loss.targets(data).reshape(-1)
        for rows in torch.randperm(len(data)).split(arguments.minibatch):
            losses = loss(data[rows.to(data.device)])
            total = sum(losses[f"loss_{part}"] for part in ("objective", "critic", "entropy"))
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 10.0)
            optimizer.step()
            target.step()
        done = data["next", "done"].squeeze(-1)
        returns.append(data["next", GROUP, "episode_reward"][done].mean().item())
        print(
            f"{iteration:5d}  frames {iteration * frames:8d}  return {returns[-1]:7.3f}  "
            f"entropy {losses['entropy'].item():.3f}  TD error {losses['td_error'].item():.4f}"
        )
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
    result.add_argument(
        "--scenario",
        default="navigation",
        choices=VmasEnv.available_envs or None,  # None without VMAS
        metavar="NAME",
        help="VMAS scenario with one group of agents",
    )
    result.add_argument("--num-envs", type=positive, default=64, help="parallel environments")
    result.add_argument("--steps", type=positive, default=50, help="steps per episode")
    result.add_argument("--iterations", type=positive, default=100)
    result.add_argument("--minibatch", type=positive, default=400, help="team steps per batch")
    result.add_argument("--lr", type=float, default=1e-3)
    result.add_argument("--device", default="cpu")
    result.add_argument("--seed", type=int, default=1)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Train; exit with a line about an invalid option."""
    train(parser().parse_args(arguments))


if __name__ == "__main__":
    main()
