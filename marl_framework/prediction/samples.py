"""What a map predictor learns from: beliefs on the way, and what they lacked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from marl_framework.evaluation.metrics import roi_entropy
from marl_framework.mission.belief import entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import Features, features
from marl_framework.planners.protocol import Decision, Planner


@dataclass
class Samples:
    """B beliefs of single UAVs, in float16."""

    fine: Tensor
    """See `Features`, [B, 3, PARTS·X, PARTS·Y]."""
    coarse: Tensor
    """[B, 3, X, Y]."""
    target: Tensor
    """Entropy of the region of interest around each lattice position, [B, X, Y]."""

    @classmethod
    def of(cls, view: LatticeView, state: MissionState) -> Self:
        """Return what the beliefs of all UAVs of all missions give."""
        seen = features(view, state.beliefs)
        target = view.sums(entropy(state.beliefs) * state.truth.unsqueeze(1))
        return cls(*(part.flatten(0, 1).half() for part in (*seen, target)))

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Return all samples of some parts."""
        return cls(*map(torch.cat, zip(*(vars(part).values() for part in parts), strict=True)))

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, index: Tensor | slice, symmetry: int) -> tuple[Features, Tensor]:
        """Return features and targets of some samples in one of the symmetries of the square.

        Args:
            index: of the samples, [b], or a slice of them.
            symmetry: 0 … 7; from 4 on x and y change places, which needs a square lattice.
        """
        fine, coarse, target = (
            _turned(part[index], symmetry).float() for part in (self.fine, self.coarse, self.target)
        )
        return Features(fine, coarse), target


def _turned(maps: Tensor, symmetry: int) -> Tensor:
    axes = [axis for axis, bit in ((-1, 1), (-2, 2)) if symmetry & bit]
    maps = maps.flip(axes) if axes else maps
    return maps.mT if symmetry & 4 else maps


@torch.no_grad()
def states(
    environment: MissionEnvironment, planner: Planner, generator: torch.Generator
) -> Iterator[MissionState]:
    """Fly missions; yield the same state before each move and after the last."""
    state = environment.reset(environment.draw_reset())
    yield state
    for _ in range(environment.episode_length):
        actions = planner.act(state, generator).actions
        environment.step(state, actions, environment.draw_step())
        yield state


class _EitherPlanner:
    """Flies some missions with one planner and the others with another."""

    def __init__(self, planners: tuple[Planner, Planner], second: Tensor) -> None:
        self.name = " or ".join(planner.name for planner in planners)
        self._planners = planners
        self._second = second

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        ours, theirs = (planner.act(state, generator) for planner in self._planners)
        second = self._second.unsqueeze(1)
        return Decision(
            torch.where(second, theirs.actions, ours.actions),
            torch.where(second.unsqueeze(2), theirs.masks, ours.masks),
        )


def fly(
    environment: MissionEnvironment,
    view: LatticeView,
    planners: tuple[Planner, Planner],
    share: float,
    generator: torch.Generator,
) -> tuple[Samples, Tensor, Tensor]:
    """Fly missions, each with one of two planners; return what there is to learn from them.

    Args:
        environment: of E missions.
        view: its lattice.
        planners: for each mission one of them.
        share: of the missions that the second planner flies.
        generator: of the planners' and this choice, on the device.

    Returns:
        Samples of every UAV before each move and after the last; ROI entropy [E] at the end;
        which missions the first planner flew, [E] bool.
    """
    drawn = torch.rand(environment.num_envs, generator=generator, device=environment.device)
    second = drawn < share
    parts: list[Samples] = []
    for state in states(environment, _EitherPlanner(planners, second), generator):
        parts.append(Samples.of(view, state))
    return Samples.joined(parts), roi_entropy(state.global_belief, state.truth), ~second
