"""Fixed evaluation missions: the same for every planner and every batch size.

Each mission has its own random generator (terrain, start, sensor, radio), seeded by the
evaluation seed, the split and the mission number. Training's generators are not used.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from marl_framework.mission.draws import ResetDraws, StepDraws
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.seeding import MAX_RANK, MAX_SEED, split_seed

Draws = TypeVar("Draws")

_PLANNER_STREAM = MAX_RANK - 1  # missions use the streams below


class DrawSource(Protocol):
    """Source of the random draws of E missions, such as a MissionEnvironment."""

    def draw_reset(self) -> ResetDraws:
        """Draw the start of E missions."""
        ...

    def draw_step(self) -> StepDraws:
        """Draw one step of E missions."""
        ...


class MissionStreams:
    """Random draws of missions `first` … `first + E - 1`, with one generator per mission.

    Args:
        env: defines the draws and E; its own generator is not used.
        seed: evaluation seed, 0 ≤ seed < 2**20.
        split: the split of `env`.
        first: number of the first mission.
    """

    def __init__(
        self, env: MissionEnvironment, seed: int, split: str = "test", first: int = 0
    ) -> None:
        self._single = copy.copy(env)
        self._single.num_envs = 1
        self._generators = [
            torch.Generator(env.device).manual_seed(_mission_seed(seed, split, first + k))
            for k in range(env.num_envs)
        ]

    def draw_reset(self) -> ResetDraws:
        """Draw the start of E missions."""
        return _concatenate([self._seeded(g).draw_reset() for g in self._generators])

    def draw_step(self) -> StepDraws:
        """Draw one step of E missions."""
        return _concatenate([self._seeded(g).draw_step() for g in self._generators])

    def _seeded(self, generator: torch.Generator) -> MissionEnvironment:
        """Return the single-mission environment, drawing from `generator`."""
        self._single.generator = generator
        return self._single


def planner_generator(env: MissionEnvironment, seed: int, split: str = "test") -> torch.Generator:
    """Return a generator for a planner's random choices, independent of all missions."""
    seed = split_seed(seed, split, _PLANNER_STREAM)
    return torch.Generator(env.device).manual_seed(seed)


def _mission_seed(seed: int, split: str, number: int) -> int:
    """Return the seed of one mission; past mission 1023, one of the next evaluation seed."""
    block, stream = divmod(number, _PLANNER_STREAM)
    return split_seed((seed + block) % MAX_SEED, split, stream)


def _concatenate(parts: Sequence[Draws]) -> Draws:
    """Concatenate dataclasses of tensors, tuples of tensors and dataclasses along the first axis.

    A field that is None stays None.
    """
    joined: dict[str, Any] = {}
    for name, value in vars(parts[0]).items():
        values = [getattr(part, name) for part in parts]
        if value is None:
            joined[name] = None
        elif isinstance(value, Tensor):
            joined[name] = torch.cat(values)
        elif isinstance(value, tuple):
            joined[name] = tuple(torch.cat(column) for column in zip(*values, strict=True))
        else:
            joined[name] = _concatenate(values)
    return type(parts[0])(**joined)
