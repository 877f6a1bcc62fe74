"""State and random draws of a batch of missions: plain tensors, with E missions first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from marl_framework.mission.terrains.mixture import TerrainDraws


@dataclass
class Seen:
    """State of E missions of N UAVs, as far as actors see it."""

    beliefs: Tensor
    """Each UAV's own belief, P(region of interest), [E, N, R, C] float32."""
    positions: Tensor
    """Lattice indices (x, y, z), [E, N, 3] int64."""
    t: Tensor
    """Number of moves made so far, [E] int64."""
    communication_range: Tensor
    """Radio range in this episode [m], [E] float32."""
    pooled_readings: Tensor
    """Area means of `readings` over X × Y parts of the unclipped footprint square,
    [E, N, X, Y] float32; 0 where the square extends beyond the map."""
    heard: Tensor
    """Whether UAV i hears UAV j, at [e, i, j], [E, N, N] bool; each UAV hears itself."""
    pooled_beliefs: Tensor
    """Area means of `beliefs` on the lattice, [E, N, X, Y] float32, kept up to date."""
    pooled_uncertainty: Tensor
    """Area means of p·H(p) over `beliefs`, [E, N, X, Y] float32, kept up to date if a network
    sees uncertainty, else 0."""
    open_share: Tensor
    """Share of the moves on the lattice that field, zones and obstacles leave open at each (x, y),
    [E, X, Y] float32."""
    active: Tensor
    """UAVs that fly now, [E, N] bool; all False when a mission is over. Inactive UAVs stay in
    place, take no readings, neither hear nor are heard, and appear on no map. All True unless
    `Config.missions.has_inactive`."""
    team_size: Tensor
    """Number of UAVs at the start of each mission, [E] int64."""
    sector: Tensor
    """Index of each UAV's sector, see `Sectors`; N for UAVs beyond the team, [E, N] int64."""
    budget: Tensor
    """Number of moves in each mission, not counting the last move, [E] int64."""
    limit: Tensor
    """Cost that each UAV may spend, [E, N] float64; 0 if moves cost nothing."""
    left: Tensor
    """Unspent part of `limit`, [E, N] float64."""


@dataclass
class MissionState(Seen):
    """Full state of E missions of N UAVs; `MissionEnvironment.step` updates it in place."""

    truth: Tensor
    """Region of interest, [E, R, C] bool."""
    global_belief: Tensor
    """Belief fused from the readings of all UAVs, [E, R, C] float32."""
    readings: Tensor
    """Latest reading of each UAV in its map window, [E, N, K_x, K_y] int8:
    +1 (region of interest), -1 (not), or 0 outside the footprint."""
    pooled_global: Tensor
    """Area means of `global_belief`, [E, X, Y] float32, kept up to date."""
    pooled_global_uncertainty: Tensor
    """As `pooled_uncertainty`, for `global_belief`, [E, X, Y] float32."""
    inside: Tensor
    """Cells of the mission's field, [E, R, C] bool; size 0 if missions map the whole area. Cells
    outside are known to be not of interest: their readings are -1, and their beliefs stay below
    `cells.PROBABILITY_FLOOR`."""
    counted: Tensor
    """Number of cells of the field, [E] float64; size 0 if missions map the whole area."""
    moves: Tensor
    """Actions that lattice, field, zones and obstacles allow at each position, [E, X, Y, Z, A]
    bool."""
    weighted_entropy: Tensor
    """Sum of w(p)·H(p) over the cells of `global_belief`, [E] float64, kept up to date."""
    entropy: Tensor
    """Sum of H(p) over the cells of `global_belief`, [E] float64, kept up to date."""
    f1: Tensor
    """F1 of `global_belief`, [E] float32, kept up to date if the reward uses F1, else 0."""
    failure_rate: Tensor
    """Probability that a message is lost, [E] float32."""
    crash_rate: Tensor
    """Probability that a UAV crashes after a move, [E] float32."""
    # Disturbances; each field has size 0, [E, 0], if it is off.
    costs: Tensor
    """Cost of each action in the wind, [E, A] float64."""
    position_bias: Tensor
    """Constant error of each UAV's position along x and y [m], [E, N, 2] float32."""
    position_jitter: Tensor
    """Standard deviation of the error of each reading's position [m], [E] float32."""
    flip_below: Tensor
    """Thresholds of the real error rates, see `Optics.flip_below`, [E, Z, 2] int16."""
    lost_frames: Tensor
    """Probability that a frame gives no reading, [E] float32."""
    burst: Tensor
    """Mean number of consecutive lost messages, [E] float32."""
    lossy: Tensor
    """Whether the last message from UAV j to UAV i was lost, at [e, i, j], [E, N, N] bool."""
    delays: Tensor
    """Delay [moves] of the message that UAV j sent to UAV i k moves ago, at [e, k, i, j], -1 if it
    is lost, [E, D + 1, N, N] int8, with the longest delay D."""
    late: Tensor
    """Age [moves] of the newest message from UAV j that reaches UAV i now, 0 if it is not late or
    none arrives, [E, N, N] int8."""
    past_positions: Tensor
    """Positions 1 to D moves ago, [E, D, N, 3] int64."""
    past_readings: Tensor
    """Readings 1 to D moves ago, [E, D, N, K_x, K_y] int8."""
    # With `sensor.model.adapt`, else of size 0:
    noise: Tensor
    """Sums of each UAV's readings, see `CameraNoise.sums`, [E, N, Z, 4, 2] float64."""
    caution: Tensor
    """Caution that each UAV has learned from its readings, [E, N] float32."""
    past_caution: Tensor
    """Caution 1 to D moves ago, [E, D, N] float32."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and tensor of each field."""
        yield from vars(self).items()

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
    """Random draws for one step."""

    sensor: Tensor
    """Uniform 16-bit integers, [E, N, K_x, K_y] int16; or, if `Fusion.draws_bits`, the keys from
    which the kernel draws them, [E] int64."""
    communication: Tensor
    """Draw that decides whether each message is lost, [E, N, N] float32 in [0, 1)."""
    crashes: Tensor | None = None
    """Draw that decides whether each UAV crashes, [E, N] float32 in [0, 1); None if none can."""
    numbers: Tensor | None = None
    """Draws for disturbances of each reading, see `disturbances.NUMBERS`, [E, N, 3] float32 in
    [0, 1); None if there are none."""
    delays: Tensor | None = None
    """Draw for the delay of each message, [E, N, N] float32 in [0, 1); None without delays."""

    def __getitem__(self, index: slice) -> StepDraws:
        """Select missions by a slice."""
        drawn = {name: values for name, values in vars(self).items() if values is not None}
        return StepDraws(**{name: values[index] for name, values in drawn.items()})


@dataclass
class ResetDraws:
    """Random draws for the start of an episode; an index is None if there is only one value."""

    terrain: TerrainDraws
    start: Tensor
    """One key per lattice cell, [E, X·Y] float32 in [0, 1); the N largest select start cells."""
    range_choice: Tensor
    """Index into the communication ranges, [E] int64."""
    first: StepDraws
    """Draws for the sensor and the messages of the first reading."""
    boxes: Tensor
    """Draws for K obstacles, [E, K, 5] float32 in [0, 1)."""
    field: Tensor | None = None
    """Draws for a field, [E, field.NUMBERS] float32 in [0, 1); None unless missions draw one."""
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
    """Index into the cost limits, [E, N] int64."""
    spreads: Tensor | None = None
    """Draws for the strength of each disturbance and for the direction of the wind, [E, K + 1]
    float32 in [0, 1); None if there are no disturbances."""
    bias: Tensor | None = None
    """Draws for `MissionState.position_bias`, [E, N, 2] float32 in [0, 1)."""


def assign(target: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Copy `value` into `target` for the missions in `mask`; None for all missions."""
    target.copy_(value if mask is None else torch.where(_expand(mask, value), value, target))


def empty_fields(
    shapes: Mapping[str, tuple[bool, tuple[int, ...], torch.dtype]],
    num_envs: int,
    device: torch.device,
) -> dict[str, Tensor]:
    """Allocate fields of `num_envs` missions, of size 0 for what is off.

    `shapes` has, by name, whether a field is used, its shape for a mission, and its type.
    """
    return {
        name: torch.zeros(num_envs, *(shape if on else (0,)), dtype=dtype, device=device)
        for name, (on, shape, dtype) in shapes.items()
    }


def fill(target: Tensor, value: float, mask: Tensor | None) -> None:
    """Fill `target` with a value for the missions in `mask`; None for all missions."""
    if mask is None:
        target.fill_(value)
    else:
        target.masked_fill_(_expand(mask, target), value)


def _expand(mask: Tensor, like: Tensor) -> Tensor:
    return mask.view(-1, *(1,) * (like.dim() - 1))
