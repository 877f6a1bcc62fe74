"""Missions for the tests of planners."""

from __future__ import annotations

import torch

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from tests.small import random_actions


def flown(env: MissionEnvironment, moves: int = 3) -> MissionState:
    state = env.reset()
    for _ in range(moves):
        env.step(state, random_actions(env, state, env.generator))
    return state


def in_view(env: MissionEnvironment, *position: int) -> tuple[slice, slice]:
    """Rows and columns of the footprint at a lattice position."""
    row0, row1, col0, col1, *_ = env.camera.footprint(torch.tensor(position))
    return slice(int(row0), int(row1)), slice(int(col0), int(col1))
