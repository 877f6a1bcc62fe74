"""Training samples of a map predictor: beliefs during missions, and the true ROI entropy."""

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
    """B samples, each from the belief of one UAV, in float16."""

    fine: Tensor
    """Fine maps (see `Features`), [B, 3, PARTS·X, PARTS·Y]."""
    coarse: Tensor
    """Coarse maps (see `Features`), [B, 3, X, Y]."""
    target: Tensor
    """Entropy of the ROI's cells around each lattice position, [B, X, Y]."""

    @classmethod
    def of(cls, view: LatticeView, state: MissionState) -> Self:
        """Return the samples of all UAVs in all missions."""
        features = view.entropy_maps(state.beliefs)
        target = view.sums(entropy(state.beliefs) * state.truth.unsqueeze(1))
        return cls(*(maps.flatten(0, 1).half() for maps in (*features, target)))

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """Concatenate samples."""
        return cls(*map(torch.cat, zip(*parts, strict=True)))

    def batch(self, index: Tensor | slice, symmetry: int) -> tuple[Features, Tensor]:
        """Return features and targets of the samples at `index`, transformed by a symmetry.

        Symmetries of the square are 0 … 7; 4 … 7 swap x and y, which requires a square lattice.
        """
        axes = [axis for axis, bit in ((-1, 1), (-2, 2)) if symmetry & bit]
        flipped = (maps[index].flip(axes) if axes else maps[index] for maps in self)
        fine, coarse, target = ((t.mT if symmetry & 4 else t).float() for t in flipped)
        return Features(fine, coarse), target


@torch.no_grad()
def fly(
    environment: MissionEnvironment, act: Callable[[MissionState], Tensor]
) -> Iterator[MissionState]:
    """Fly E missions; yield the state (updated in place) before each move and after the last.

    `act` returns the actions of all UAVs in a state, [E, N].
    """
    state = environment.reset()
    yield state
    for _ in range(environment.episode_length):
        environment.step(state, act(state))
        yield state
