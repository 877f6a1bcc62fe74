"""Random numbers of a batch of missions, drawn before use."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from marl_framework.mission.terrains.mixture import TerrainDraws


@dataclass
class StepDraws:
    """Random numbers of one step."""

    sensor: Tensor
    """Uniform 16-bit integers, [E, N, K_x, K_y] int16; or keys from which the reading draws them,
    [E] int64 (`Fusion.draws_bits`)."""
    communication: Tensor
    """Messages, [E, N, N] float32 in [0, 1)."""
    crashes: Tensor | None = None
    """Crashes, [E, N] float32 in [0, 1); None if no UAV crashes."""

    def __getitem__(self, index: slice) -> StepDraws:
        """Select missions by a slice."""
        crashes = None if self.crashes is None else self.crashes[index]
        return StepDraws(self.sensor[index], self.communication[index], crashes)


@dataclass
class ResetDraws:
    """Random numbers of the start of an episode; an index is None if there is one value."""

    terrain: TerrainDraws
    start: Tensor
    """Keys of the cells, [E, X·Y] float32 in [0, 1): the N largest are start cells."""
    range_choice: Tensor
    """Index into the communication ranges, [E] int64."""
    first: StepDraws
    """Noise and radio of the first reading."""
    boxes: Tensor
    """Obstacles, [E, K, 5] float32 in [0, 1)."""
    moves: Tensor | None = None
    """Moves that no-fly zones leave open, [E, X, Y, Z, A] bool; None if they are the same in all
    missions."""
    team: Tensor | None = None
    """Index into the team sizes, [E] int64."""
    budget: Tensor | None = None
    """Index into the budgets, [E] int64."""
    failure_rate: Tensor | None = None
    """Index into the failure rates, [E] int64."""
    crash_rate: Tensor | None = None
    """Index into the crash rates, [E] int64."""
    limit: Tensor | None = None
    """Index into the limits of cost, [E, N] int64."""
