"""Algorithms on a toy game, for the tests."""

from collections.abc import Callable
from dataclasses import replace
from pkgutil import resolve_name

import torch
from torch import Tensor

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.model import Config, NetworkSizes
from marl_framework.config.parts import ALGORITHMS

PAYOFF = ((0.3, 0.0), (0.0, 1.0))
"""Reward of the joint action: both must choose 1; both choosing 0 is a worse equilibrium."""


class ToyGame:
    """Two agents, actions and steps. Agents see id and time, the critic the other's action too."""

    sizes = NetworkSizes(
        actor_channels=2, critic_channels=3, shape=(3, 3), num_actions=2, action_channels=(2,)
    )
    n_agents = 2
    episode_length = 2

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.generator = torch.Generator().manual_seed(seed)
        self._payoff = torch.tensor(PAYOFF)
        self.t = 0

    def reset(self) -> None:
        self.t = 0

    def observe(self, out: Tensor) -> Tensor:
        ids = torch.tensor([0.5, 1.0]).view(1, 2, 1, 1, 1)
        time = torch.full((1, 2, 1, 1, 1), float(self.t))
        return out.copy_(torch.cat((ids, time), dim=2).expand_as(out))

    def choose_in_order(self, choose: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        mask = torch.ones(self.num_envs, 2, dtype=torch.bool)
        actions = torch.stack([choose(i, mask) for i in range(2)], dim=1)
        return actions, mask.unsqueeze(1).expand(-1, 2, -1)

    def critic_maps(self, actions: Tensor, out: Tensor) -> Tensor:
        return out.copy_(actions.flip(1).view(-1, 2, 1, 1, 1).expand_as(out))

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        self.t += 1
        return self._payoff[actions[:, 0], actions[:, 1]], torch.zeros(self.num_envs, 0)


def settings(compute=None, algorithm="coma", save_replay=True, **options) -> Config:
    """Small networks that learn fast; options are keys of `learning`."""
    learning = {
        "data_passes": 2,
        "batch_number": 2,
        "actor": {"learning_rate": 3e-3},
        "critic": {"learning_rate": 1e-2},
        "clip_ratio": 0.2 if algorithm in ("ippo", "mappo") else 0.0,
    }
    if algorithm in ("sac", "isac", "qmix"):
        learning |= {"temperature": 0.02, "replay_size": 4096}
    for key, value in options.items():
        learning[key] = {**learning.get(key, {}), **value} if isinstance(value, dict) else value
    widths = {"conv_channels": 16, "hidden_dim": 16}
    return Config.model_validate(
        {
            "experiment": {"algorithm": algorithm},
            "networks": {"actor": widths, "critic": widths},
            "learning": learning,
            "compute": {"precision": "float32", "device": "cpu", **(compute or {})},
            "logging": {"save_replay": save_replay},
        }
    )


def make(seed=0, algorithm="coma", device="cpu", **options) -> ActorCritic:
    torch.manual_seed(seed)
    made = resolve_name(ALGORITHMS[algorithm])
    return made(settings(algorithm=algorithm, **options), ToyGame.sizes, device)


def rollout_on(device="cpu", num_envs=3, seed=0) -> Rollout:
    """Random data in the shape of a toy rollout, T = 2."""
    lead, sizes = (2, num_envs, 2), ToyGame.sizes
    generator = torch.Generator().manual_seed(seed)
    masks = torch.ones(*lead, sizes.num_actions, dtype=torch.bool)
    maps = torch.randn(*lead, sizes.critic_channels, 3, 3, generator=generator)
    rollout = Rollout(
        observations=maps[..., : sizes.actor_channels, :, :],
        critic_maps=maps[..., sizes.actor_channels :, :, :],
        actions=torch.randint(2, lead, generator=generator),
        masks=masks,
        probabilities=masks / 2,
        rewards=torch.randn(*lead[:2], generator=generator),
        metrics=torch.zeros(*lead[:2], 0),
    )
    return Rollout(**{name: field.to(device) for name, field in rollout.tensors().items()})


def uneven_rollout(num_envs=3, seed=0) -> Rollout:
    """The same; one action is forbidden, and the policy that flew was uneven."""
    rollout = rollout_on(num_envs=num_envs, seed=seed)
    first = torch.tensor([0.3, 0.7]).expand(rollout.probabilities.shape)
    masks = rollout.masks.clone()
    masks[0, 0, 0, 1 - rollout.actions[0, 0, 0]] = False
    return replace(rollout, masks=masks, probabilities=first.contiguous())


def concatenate(rollouts: list[Rollout]) -> Rollout:
    """Join rollouts along the environment axis."""
    names = rollouts[0].tensors()
    joined = {name: torch.cat([vars(r)[name] for r in rollouts], dim=1) for name in names}
    return Rollout(**joined)


def shuffler(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(team: ActorCritic) -> list[Tensor]:
    """Copies of the parameters of all networks."""
    return [p.detach().clone() for m in team.modules.values() for p in m.parameters()]


def same(a, b) -> bool:
    """Whether two networks have the same weights."""
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
