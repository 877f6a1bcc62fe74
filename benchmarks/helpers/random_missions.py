"""Whole missions with random actions and all observations, to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.helpers.harness import CPU
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import RandomPlanner


class RandomMissions(NamedTuple):
    """Missions that are ready to fly."""

    environment: MissionEnvironment
    fly: Callable[[], None]
    """Resets all missions and flies them to their end."""
    observation: int
    """Size of an actor's observation [bytes]."""


def random_missions(config: Config, num_envs: int) -> RandomMissions:
    """Prepare `num_envs` missions on the CPU."""
    env = MissionEnvironment(config, num_envs, CPU)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = RandomPlanner(env.lattice)
    state = env.reset()

    def fly() -> None:
        env.reset(state=state)
        for _ in range(env.episode_length):
            actions = planner.act(state, env.generator).actions
            env.step(state, actions, env.draw_step(reuse=True))
            builder.actor(state)

    return RandomMissions(env, fly, builder.actor(state)[0, 0].nbytes)
