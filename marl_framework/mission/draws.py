"""The randomness of a batch of missions, drawn before it is used."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from marl_framework.mission.terrains.mixture import TerrainDraws


@dataclass
class StepDraws:
    """Randomness of one step."""

    sensor: Tensor
    """[E, N, K_x, K_y] int16, uniform over all 16-bit integers; where `WindowFusion.draws_bits`,
    keys that it draws them from, [E] int64."""
    communication: Tensor
    """[E, N, N] float32 in [0, 1)."""
    crashes: Tensor | None = None
    """[E, N] float32 in [0, 1); None where no UAV crashes."""

    def __getitem__(self, index: slice) -> StepDraws:
        """Select missions by a slice."""
        crashes = None if self.crashes is None else self.crashes[index]
        return StepDraws(self.sensor[index], self.communication[index], crashes)


@dataclass
class ResetDraws:
    """Randomness of the start of an episode."""

    terrain: TerrainDraws
    start: Tensor
    """[E, X·Y] float32 in [0, 1): the N largest choose the start cells."""
    range_choice: Tensor
    """[E] int64, index into the communication ranges."""
    first: StepDraws
    """Noise and radio of the first reading."""
    boxes: Tensor
    """[E, K, 5] float32 in [0, 1), what obstacles are made of."""
    moves: Tensor | None = None
    """Moves that no-fly zones leave open, [E, X, Y, Z, A] bool, where they differ between missions:
    over windows of a map. None: those of the whole area."""
    team: Tensor | None = None
    """[E] int64, index into the team sizes; None where there is but one."""
    budget: Tensor | None = None
    """[E] int64, index into the budgets; None where there is but one."""
    failure_rate: Tensor | None = None
    """[E] int64, index into the failure rates; None where there is but one."""
    crash_rate: Tensor | None = None
    """[E] int64, index into the crash rates; None where there is but one."""
    limit: Tensor | None = None
    """[E, N] int64, index into the limits of cost; None where there is but one."""
