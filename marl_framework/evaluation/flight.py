"""Fly planners through whole missions and record metrics.

Rounds count readings: round 0 is before any reading, round 1 follows the first reading at the
start, round T + 1 follows the last move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from marl_framework.command_line import warn
from marl_framework.config.model import Config
from marl_framework.evaluation.metrics import coverage, map_metrics, roi_entropy
from marl_framework.evaluation.missions import DrawSource, MissionStreams, planner_generator
from marl_framework.mission.accuracy import f1
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.no_fly_zones import NoFlyZones
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Planner
from marl_framework.stage_timer import StageTimer

StreamMaker = Callable[[MissionEnvironment, int, str, int], DrawSource]
"""Returns the draws of a batch from (env, seed, split, number of the first mission)."""


@dataclass
class FlightRecord:
    """E missions flown by one planner; E is the first axis of every tensor."""

    planner: str
    config: Config
    metrics: dict[str, Tensor]
    """Metrics of the global belief after each round, by name, [E, T + 2] each: `roi_entropy`, `f1`,
    `rmse`, `wrmse`, `mll`, `wmll` (see `map_metrics`) and `coverage`."""
    episode_return: Tensor
    """Undiscounted return: the sum of the rewards of all moves, no unit, [E] float32."""
    absolute_return: Tensor
    """Sum over steps of absolute_scale · information gained + absolute_offset, [E]."""
    path_length: Tensor
    """Distance flown by the whole team [m], [E]."""
    altitude_shares: Tensor
    """Share of the readings taken at each altitude, lowest first, [E, Z]."""
    positions: Tensor
    """Lattice indices (x, y, z) at each reading, [E, T + 1, N, 3] int64."""
    path: Tensor
    """Coordinates (x, y, altitude) at each reading [m], [E, T + 1, N, 3] float32."""
    footprints: Tensor
    """Cells in view at each reading, half-open (row0, row1, col0, col1), [E, T + 1, N, 4]
    int64."""
    active: Tensor
    """UAVs that took each reading, [E, T + 1, N] bool; the others stay where they are."""
    truth: Tensor
    """Ground truth of the first M ≤ E missions, [M, R, C] bool."""
    belief: Tensor
    """Final global belief of the first M missions, [M, R, C]."""
    film: Tensor
    """Global belief of the first M missions after each round, [M, T + 2, R, C] float16."""
    missions_per_batch: int
    """Missions that flew at once."""
    planning_seconds: list[float]
    """Mean planning time of one step of each batch [s]."""
    window_origins: Tensor | None = None
    """Lower left corner of each mission's window on the measured map [m], [E, 2] float64, NaN
    over other ground; None where there is no map."""
    boxes: Tensor | None = None
    """Obstacles of each mission as (x0, x1, y0, y1, height) [m], [E, K, 5] float64, NaN where one
    is left out."""
    zones: NoFlyZones | None = None

    def alone(self, index: int) -> FlightRecord:
        """Return one mission by itself: its own UAVs and its own readings; E is 1.

        The tensors are views. There are no maps where the record has not kept those of the mission.
        """
        cut = self._with_each(lambda values: values[index : index + 1])
        team, readings = cut.active[0, 0], int(cut.active.any(2).sum())
        own: dict[str, Any] = {
            name: getattr(cut, name)[:, :readings, team]
            for name in ("positions", "path", "footprints", "active")
        }
        metrics = {name: values[:, : readings + 1] for name, values in cut.metrics.items()}
        config = self.config
        if config.missions.has_inactive:
            config = config.of_mission(int(team.sum()), budget=readings - 2)
        film = cut.film[:, : readings + 1]
        return replace(cut, config=config, metrics=metrics, film=film, **own)

    def tracks(self, index: int) -> list[Tensor]:
        """Return where each UAV of a mission made its readings [m], N times [readings, 3]."""
        one = self.alone(index)
        return [
            one.path[0, :readings, n] for n, readings in enumerate(one.active[0].sum(0).tolist())
        ]

    def cpu(self) -> FlightRecord:
        """Return a copy of the record on the CPU."""
        return self._with_each(Tensor.cpu)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, but for those of `metrics`."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> FlightRecord:
        """Return the record with every tensor changed."""
        tensors: dict[str, Any] = {name: change(value) for name, value in self._tensors().items()}
        metrics = {name: change(value) for name, value in self.metrics.items()}
        return replace(self, metrics=metrics, **tensors)


@dataclass
class _Log:
    """Readings and metrics of a flight in progress, on the environment's device."""

    env: MissionEnvironment
    seen: Tensor
    """Cells observed so far, [E, R, C] bool."""
    keep_maps: int | None
    """Number of missions to film; None for all."""
    metrics: dict[str, list[Tensor]] = field(default_factory=dict)
    positions: list[Tensor] = field(default_factory=list)
    footprints: list[Tensor] = field(default_factory=list)
    active: list[Tensor] = field(default_factory=list)
    film: list[Tensor] = field(default_factory=list)

    def add_reading(self, state: MissionState, active: Tensor) -> None:
        """Record the positions and the footprints of the UAVs, of which those `active` read."""
        boxes = self.env.camera.team_boxes(state.positions, active)
        self.positions.append(state.positions.clone())
        self.footprints.append(boxes[..., :4])
        self.active.append(active)
        _mark_seen(self.seen, self.footprints[-1])

    def add_round(self, belief: Tensor, truth: Tensor) -> None:
        """Record the metrics of a round."""
        metrics = {**map_metrics(belief, truth), "coverage": coverage(self.seen)}
        for name, values in metrics.items():
            self.metrics.setdefault(name, []).append(values)
        self.film.append(belief[: self.keep_maps].half())


@torch.no_grad()
def fly(
    env: MissionEnvironment,
    planner: Planner,
    generator: torch.Generator,
    draws: DrawSource | None = None,
    keep_maps: int | None = None,
) -> FlightRecord:
    """Fly E whole missions with one planner and record metrics after every round.

    No data is transferred to the host before the last move.

    Args:
        env: environment of E missions.
        planner: planner of all missions.
        generator: generator of the planner's random choices.
        draws: random draws of the missions; None for those of `env`.
        keep_maps: number of missions whose ground truth and beliefs are recorded; None for all.

    Returns:
        The record, on the environment's device.
    """
    draws = draws or env
    start = draws.draw_reset()
    state = env.reset(start)
    boxes = env.obstacles.boxes(start.boxes, state.positions)
    log = _Log(env, torch.zeros_like(state.truth), keep_maps)
    timer = StageTimer(env.device)
    log.add_round(torch.full_like(state.global_belief, env.config.mapping.prior), state.truth)
    log.add_reading(state, state.active.clone())
    log.add_round(state.global_belief, state.truth)
    rewards, absolutes = [], []
    for _ in range(env.episode_length):
        with timer("planning"):
            actions, *_ = planner.act(state, generator)
        active = state.active.clone()
        result = env.step(state, actions, draws.draw_step())
        rewards.append(result.reward)
        absolutes.append(_absolute_reward(env.config, result.absolute, active))
        log.add_reading(state, active)
        log.add_round(state.global_belief, state.truth)
    positions = torch.stack(log.positions, dim=1)
    path, flown = env.lattice.metres(positions), torch.stack(log.active, dim=1)
    return FlightRecord(
        planner=planner.name,
        config=env.config,
        metrics={name: torch.stack(values, dim=1) for name, values in log.metrics.items()},
        episode_return=torch.stack(rewards).sum(0),
        absolute_return=torch.stack(absolutes).sum(0),
        path_length=path.diff(dim=1).norm(dim=-1).sum(dim=(1, 2)),
        altitude_shares=_altitude_shares(positions[..., 2], env.lattice.shape[2], flown),
        positions=positions,
        path=path,
        footprints=torch.stack(log.footprints, dim=1),
        active=flown,
        truth=state.truth[:keep_maps].clone(),
        belief=state.global_belief[:keep_maps].clone(),
        film=torch.stack(log.film, dim=1),
        missions_per_batch=env.num_envs,
        planning_seconds=[timer.seconds()["planning"] / env.episode_length],
        window_origins=env.terrain.window_origins(start.terrain),
        boxes=boxes,
        zones=env.zones,
    )


def evaluate(
    env: MissionEnvironment,
    planner: Planner,
    missions: int,
    seed: int,
    split: str = "test",
    keep_maps: int = 1,
    streams: StreamMaker = MissionStreams,
) -> FlightRecord:
    """Fly the missions of an evaluation seed with one planner, in batches of E.

    The missions depend on configuration, seed, split and device type only, and on a GPU on whether
    Triton draws the sensor's bits; not on the planner or E. The actions of a random planner do
    depend on E.

    Args:
        env: environment of `split`; its generator is not used.
        planner: planner of all missions.
        missions: number of missions, at least 1.
        seed: evaluation seed, 0 ≤ seed < 2**20.
        split: test, validation or deployment.
        keep_maps: number of missions whose ground truth and beliefs are recorded.
        streams: returns the random draws of each batch.

    Returns:
        The record, on the CPU.

    Raises:
        ValueError: `missions` is less than 1.
    """
    if missions < 1:
        raise ValueError(f"missions must be at least 1, not {missions}")
    generator = planner_generator(env, seed, split)
    records = []
    for first in range(0, missions, env.num_envs):
        draws = streams(env, seed, split, first)
        wanted = min(max(keep_maps - first, 0), missions - first)
        records.append(fly(env, planner, generator, draws, keep_maps=wanted).cpu())
    return _concatenate(records, missions)


@torch.no_grad()
def validate(env: MissionEnvironment, planner: Planner) -> dict[str, Tensor]:
    """Fly E fixed validation missions of the configuration's seed; return their final metrics.

    Suits validation during training: every call flies the same missions, uses none of training's
    generators and does not synchronise with the host.

    Args:
        env: environment of the validation split.
        planner: planner of all missions.

    Returns:
        Tensors [E] on the device: `roi_entropy` and `f1` after the last move, and the
        undiscounted `return`.
    """
    seed = env.config.environment.seed
    draws = MissionStreams(env, seed, "validation")
    generator = planner_generator(env, seed, "validation")
    state = env.reset(draws.draw_reset())
    total = torch.zeros(env.num_envs, device=env.device)
    for _ in range(env.episode_length):
        actions, *_ = planner.act(state, generator)
        total += env.step(state, actions, draws.draw_step()).reward
    return {
        "roi_entropy": roi_entropy(state.global_belief, state.truth),
        "f1": f1(state.global_belief, state.truth),
        "return": total,
    }


def warn_without_interest(roi_entropy: Tensor) -> None:
    """Warn of missions without a region of interest: those whose ROI entropy [E] is 0.

    Elsewhere beliefs have some, within the bounds of a probability.
    """
    if bare := int((roi_entropy == 0).sum()):
        warn(
            f"warning: {bare} of {len(roi_entropy)} missions have no region of interest; ROI "
            "entropy and F1 are 0 there, and means count them. On a measured map, choose another "
            "sensor.simulation.raster.threshold"
        )


def _absolute_reward(config: Config, absolute: Tensor, active: Tensor) -> Tensor:
    """Return the scaled absolute gains [E] of a move that UAVs [E, N] flew, 0 where none did."""
    reward = config.experiment.reward
    return (reward.absolute_scale * absolute + reward.absolute_offset) * active.any(1)


def _mark_seen(seen: Tensor, footprints: Tensor) -> None:
    """Set the cells of `seen` [E, R, C] that lie in `footprints` [E, N, 4], in place."""
    row0, row1, col0, col1 = footprints.unsqueeze(-1).unbind(-2)
    rows = torch.arange(seen.shape[1], device=seen.device)
    cols = torch.arange(seen.shape[2], device=seen.device)
    in_rows = (rows >= row0) & (rows < row1)
    in_cols = (cols >= col0) & (cols < col1)
    for n in range(footprints.shape[1]):  # one UAV at a time, to avoid an [E, N, R, C] tensor
        seen |= in_rows[:, n].unsqueeze(-1) & in_cols[:, n].unsqueeze(-2)


def _altitude_shares(levels: Tensor, num_levels: int, active: Tensor) -> Tensor:
    """Return the share of each altitude index, [E, Z], in `levels` [E, T + 1, N] of active UAVs."""
    one_hot = levels.unsqueeze(-1) == torch.arange(num_levels, device=levels.device)
    counts = (one_hot & active.unsqueeze(-1)).sum(dim=(1, 2), dtype=torch.float32)
    return counts / active.sum(dim=(1, 2)).unsqueeze(1)


def _concatenate(records: Sequence[FlightRecord], missions: int) -> FlightRecord:
    """Concatenate the records of consecutive batches and keep the first `missions` missions."""
    first = records[0]
    tensors: dict[str, Any] = {
        name: torch.cat([getattr(record, name) for record in records])[:missions]
        for name in first._tensors()
    }
    metrics = {
        name: torch.cat([record.metrics[name] for record in records])[:missions]
        for name in first.metrics
    }
    seconds = [value for record in records for value in record.planning_seconds]
    return replace(first, metrics=metrics, planning_seconds=seconds, **tensors)
