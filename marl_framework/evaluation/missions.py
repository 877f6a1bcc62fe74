"""Fixed missions: the same ones for every planner, whatever the batch size.

Each mission has a stream of draws of its own (terrain, start, sensor, radio), seeded by the
evaluation's seed, the split and the mission's number. Training's generators are never touched.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from marl_framework.mission.environment import MissionEnvironment, ResetDraws, StepDraws
from marl_framework.mission.seeding import MAX_RANK, MAX_SEED, split_seed

Draws = TypeVar("Draws")

_PLANNER_STREAM = MAX_RANK - 1  # the streams below it belong to missions


class DrawSource(Protocol):
    """Where the randomness of E missions comes from; a MissionEnvironment is one."""

    def draw_reset(self) -> ResetDraws:
        """Draw the start of E missions."""
        ...

    def draw_step(self) -> StepDraws:
        """Draw one step of E missions."""
        ...


class MissionStreams:
    """Draws missions `first` … `first + E - 1` of an evaluation, each from its own generator.

    Args:
        env: says what to draw, and E; its own generator stays as it is.
        seed: of the evaluation, 0 ≤ seed < 2**20.
        split: the one that `env` was made for.
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
        return _stack([self._of(generator).draw_reset() for generator in self._generators])

    def draw_step(self) -> StepDraws:
        """Draw one step of E missions."""
        return _stack([self._of(generator).draw_step() for generator in self._generators])

    def _of(self, generator: torch.Generator) -> MissionEnvironment:
        self._single.generator = generator
        return self._single


def planner_generator(env: MissionEnvironment, seed: int, split: str = "test") -> torch.Generator:
    """Return the generator of a planner's own randomness, apart from that of all missions."""
    seed = split_seed(seed, split, _PLANNER_STREAM)
    return torch.Generator(env.device).manual_seed(seed)


def _mission_seed(seed: int, split: str, number: int) -> int:
    """Return the seed of one mission; past 1023 missions the next evaluation seed lends its own."""
    block, stream = divmod(number, _PLANNER_STREAM)
    return split_seed((seed + block) % MAX_SEED, split, stream)


def _stack(parts: Sequence[Draws]) -> Draws:
    """Join dataclasses of tensors, None, tuples and such dataclasses along the first axis."""
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
            joined[name] = _stack(values)
    return type(parts[0])(**joined)
