"""Training samples of a map predictor: beliefs during missions, and the entropy they missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor

from marl_framework.kernels.cells import entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.lattice_view import Features, LatticeView


class Samples(NamedTuple):
    """B beliefs of single UAVs, in float16."""

    fine: Tensor
    """See `Features`, [B, 3, PARTS·X, PARTS·Y]."""
    coarse: Tensor
    """See `Features`, [B, 3, X, Y]."""
    target: Tensor
    """Entropy of the region of interest around each lattice position, [B, X, Y]."""

    @classmethod
    def of(cls, view: LatticeView, state: MissionState) -> Self:
        """Return the samples of all UAVs of all missions."""
        seen = view.entropy_maps(state.beliefs)
        target = view.sums(entropy(state.beliefs) * state.truth.unsqueeze(1))
        return cls(*(part.flatten(0, 1).half() for part in (*seen, target)))

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """Concatenate samples."""
        return cls(*map(torch.cat, zip(*parts, strict=True)))

    def batch(self, index: Tensor | slice, symmetry: int) -> tuple[Features, Tensor]:
        """Return features and targets of some samples in one of the symmetries of the square.

        They are 0 … 7; from 4 on x and y are swapped, which needs a square lattice.
        """
        axes = [axis for axis, bit in ((-1, 1), (-2, 2)) if symmetry & bit]
        turned = (part[index].flip(axes) if axes else part[index] for part in self)
        fine, coarse, target = ((t.mT if symmetry & 4 else t).float() for t in turned)
        return Features(fine, coarse), target


@torch.no_grad()
def fly(
    environment: MissionEnvironment, act: Callable[[MissionState], Tensor]
) -> Iterator[MissionState]:
    """Fly E missions of N UAVs; yield the same state object before each move and after the last.

    `act` returns the actions of all UAVs in a state, [E, N].
    """
    state = environment.reset(environment.draw_reset())
    yield state
    for _ in range(environment.episode_length):
        environment.step(state, act(state), environment.draw_step())
        yield state
