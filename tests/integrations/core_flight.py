"""Missions flown by the core alone, to compare the wrappers with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from tests.small import random_actions


class CoreFlight(NamedTuple):
    """Whole episodes, one after the other; the step leads."""

    actions: Tensor  # [S, E, N], chosen in order
    rewards: Tensor  # [S, E]
    observations: Tensor  # before each step, [S, E, N, C, X, Y]
    last: Tensor  # after the last step of each episode, [episodes, E, N, C, X, Y]


def fly(config: Config, num_envs: int, episodes: int = 2) -> CoreFlight:
    env = MissionEnvironment(config, num_envs, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    choices = torch.Generator().manual_seed(1)
    actions, rewards, observations, last = [], [], [], []
    state = None
    for _ in range(episodes):
        state = env.reset(state=state)
        for _ in range(env.episode_length):
            observations.append(builder.actor(state))
            actions.append(random_actions(env, state, choices))
            rewards.append(env.step(state, actions[-1]).reward)
        last.append(builder.actor(state))
    return CoreFlight(*(torch.stack(x) for x in (actions, rewards, observations, last)))
