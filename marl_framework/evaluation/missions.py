"""Fixed evaluation missions: the same for every planner and every batch size.

Each mission has its own random generator (terrain, start, sensor, radio), seeded by the
evaluation seed (0 ≤ seed < 2**20), the split and the mission number, apart from training's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from marl_framework.mission.draws import ResetDraws, StepDraws
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.seeding import MAX_RANK, MAX_SEED, split_seed

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
    """Random draws of missions `first` … `first + E - 1`, with one generator per mission."""

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
        return _concatenate([env.draw_reset() for env in self._each()])

    def draw_step(self) -> StepDraws:
        """Draw one step of E missions."""
        return _concatenate([env.draw_step() for env in self._each()])

    def _each(self) -> Iterator[MissionEnvironment]:
        for generator in self._generators:
            self._single.generator = generator
            yield self._single


def planner_generator(env: MissionEnvironment, seed: int, split: str = "test") -> torch.Generator:
    """Return a generator for a planner's random choices, independent of all missions."""
    return torch.Generator(env.device).manual_seed(split_seed(seed, split, _PLANNER_STREAM))


def _mission_seed(seed: int, split: str, number: int) -> int:
    """Return the seed of one mission; past mission 1023, one of the next evaluation seed."""
    block, stream = divmod(number, _PLANNER_STREAM)
    return split_seed((seed + block) % MAX_SEED, split, stream)


def _concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate tensors, tuples and dataclasses of tensors or None along the first axis."""
    first = parts[0]
    if first is None:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, tuple):
        return tuple(_concatenate(column) for column in zip(*parts, strict=True))
    fields = {name: _concatenate([getattr(part, name) for part in parts]) for name in vars(first)}
    return type(first)(**fields)
