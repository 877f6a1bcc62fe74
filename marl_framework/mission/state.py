"""State and random numbers of a batch of missions: plain tensors, the environment axis first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from marl_framework.mission.terrains.mixture import TerrainDraws


@dataclass
class Seen:
    """Part of E missions of N UAVs that actors see."""

    beliefs: Tensor
    """Own belief of each UAV, P(region of interest), [E, N, R, C] float32."""
    positions: Tensor
    """Lattice indices (x, y, z), [E, N, 3] int64."""
    t: Tensor
    """Moves made so far, [E] int64."""
    communication_range: Tensor
    """Radio range of this episode [m], [E] float32."""
    pooled_readings: Tensor
    """Area means of `readings` over X × Y parts of the unclipped footprint square,
    [E, N, X, Y] float32; 0 where the square lies beyond the map."""
    heard: Tensor
    """heard[e, i, j]: i hears j (itself always), [E, N, N] bool."""
    pooled_beliefs: Tensor
    """Area means of `beliefs` on the lattice, [E, N, X, Y] float32, kept up to date."""
    pooled_uncertainty: Tensor
    """Area means of p·H(p) of the own beliefs, [E, N, X, Y] float32, kept up to date if a network
    sees uncertainty, else 0."""
    open_share: Tensor
    """Share of the moves on the lattice that zones and obstacles leave open at each (x, y),
    [E, X, Y] float32."""
    active: Tensor
    """UAVs that fly now, [E, N] bool; none once a mission is over. The others stay in place, read
    nothing, neither hear nor are heard, and are on no map. All True unless
    `Config.missions.has_inactive`."""
    team_size: Tensor
    """UAVs that fly at the start of each mission, [E] int64."""
    sector: Tensor
    """Index of each UAV's sector, see `Sectors`; N for UAVs beyond the team, [E, N] int64."""
    budget: Tensor
    """Moves of each mission before its last one, [E] int64."""
    limit: Tensor
    """Cost that each UAV may spend, [E, N] float64; 0 if moves cost nothing."""
    left: Tensor
    """Rest of `limit` that each UAV has not spent, [E, N] float64."""


@dataclass
class MissionState(Seen):
    """E missions of N UAVs each. `MissionEnvironment.step` advances it in place."""

    truth: Tensor
    """Region of interest, [E, R, C] bool."""
    global_belief: Tensor
    """Belief from the readings of all UAVs, [E, R, C] float32."""
    readings: Tensor
    """Latest reading of each UAV in its map window, [E, N, K_x, K_y] int8:
    +1 read as region of interest, -1 read as not, 0 outside the footprint."""
    pooled_global: Tensor
    """Area means of `global_belief`, [E, X, Y] float32, kept up to date."""
    pooled_global_uncertainty: Tensor
    """The same of `global_belief`, [E, X, Y] float32."""
    moves: Tensor
    """Actions that lattice, zones and obstacles allow at each position, [E, X, Y, Z, A] bool."""
    weighted_entropy: Tensor
    """Sum of w(p)·H(p) over the cells of `global_belief`, [E] float64, kept up to date."""
    entropy: Tensor
    """Sum of H(p) over the cells of `global_belief`, [E] float64, kept up to date."""
    f1: Tensor
    """F1 of `global_belief`, [E] float32, kept up to date if the reward counts it, else 0."""
    failure_rate: Tensor
    """Share of lost messages, [E] float32."""
    crash_rate: Tensor
    """Share of UAVs that crash after each move, [E] float32."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) pairs."""
        for field in fields(self):
            yield field.name, getattr(self, field.name)

    def clone(self) -> Self:
        """Return an independent copy."""
        return type(self)(**{name: tensor.clone() for name, tensor in self.tensors()})

    def to(self, device: torch.device | str) -> Self:
        """Return the state on another device."""
        return type(self)(**{name: tensor.to(device) for name, tensor in self.tensors()})

    def __getitem__(self, index: slice) -> Self:
        """Select missions by a slice (views, no copies)."""
        return type(self)(**{name: tensor[index] for name, tensor in self.tensors()})


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


def assign(target: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Write `value` into `target` for the missions of a mask, or for all of them."""
    target.copy_(value if mask is None else torch.where(_expand(mask, value), value, target))


def fill(target: Tensor, value: float, mask: Tensor | None) -> None:
    """Fill `target` for the missions of a mask, or for all of them."""
    if mask is None:
        target.fill_(value)
    else:
        target.masked_fill_(_expand(mask, target), value)


def _expand(mask: Tensor, like: Tensor) -> Tensor:
    return mask.view(-1, *(1,) * (like.dim() - 1))
