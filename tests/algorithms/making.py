"""Algorithms on a toy game, for the tests."""

from __future__ import annotations

from pkgutil import resolve_name

import torch

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.model import Config
from marl_framework.config.parts import ALGORITHMS
from tests.algorithms.toy_game import ToyGame


def settings(compute=None, algorithm="coma", **options) -> Config:
    """Small networks that learn fast; options are keys of `learning`."""
    learning = {
        "data_passes": 2,
        "batch_number": 2,
        "actor": {"learning_rate": 3e-3},
        "critic": {"learning_rate": 1e-2},
    }
    for key, value in options.items():
        learning[key] = {**learning.get(key, {}), **value} if isinstance(value, dict) else value
    widths = {"conv_channels": 16, "hidden_dim": 16}
    return Config.model_validate(
        {
            "experiment": {"algorithm": algorithm},
            "networks": {"actor": widths, "critic": widths},
            "learning": learning,
            "compute": {"precision": "float32", "device": "cpu", **(compute or {})},
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


def concatenate(rollouts: list[Rollout]) -> Rollout:
    """Join rollouts along the environment axis."""
    return Rollout(
        **{
            name: torch.cat([vars(r)[name] for r in rollouts], dim=1)
            for name in rollouts[0].tensors()
        }
    )


def same(a, b) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
