"""Flying planners through whole missions, and what is measured on the way.

Rounds count readings: round 0 is before any reading, round 1 after the first one at the start,
round T + 1 after the last move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.evaluation.metrics import coverage, f1, map_metrics, roi_entropy
from marl_framework.evaluation.missions import DrawSource, MissionStreams, planner_generator
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Planner

StreamMaker = Callable[[MissionEnvironment, int, str, int], DrawSource]


@dataclass
class FlightRecord:
    """E missions flown by one planner; tensors, E first."""

    planner: str
    config: Config
    metrics: dict[str, Tensor]
    """Measures of the global belief after each round, by name: [E, T + 2]."""
    reward_sum: Tensor
    """Undiscounted return: sum of the rewards, [E]."""
    absolute_return: Tensor
    """Sum over steps of absolute_scale · information gained + absolute_offset, [E]."""
    path_length: Tensor
    """Distance flown by the whole team [m], [E]."""
    altitude_shares: Tensor
    """Share of the readings taken at each altitude, lowest first, [E, Z]."""
    positions: Tensor
    """Lattice indices at each reading, [E, T + 1, N, 3] int64."""
    path: Tensor
    """The same [m], float32."""
    footprints: Tensor
    """Cells in view at each reading, half-open, on the map: [E, T + 1, N, 4] int64,
    (row0, row1, col0, col1)."""
    truth: Tensor
    """Ground truth of the first missions, [M, R, C] bool; M ≤ E."""
    belief: Tensor
    """Global belief at the end of the same missions, [M, R, C]."""
    film: Tensor
    """Their global belief after each round, [M, T + 2, R, C] float16."""
    missions_at_once: int
    """Missions of a batch."""
    planning_seconds: list[float]
    """Time the planner took for a step of the batch, one mean value a batch [s]."""

    def cpu(self) -> FlightRecord:
        """Return the record on the host."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        moved |= {name: value.cpu() for name, value in moved.items() if isinstance(value, Tensor)}
        moved["metrics"] = {name: value.cpu() for name, value in self.metrics.items()}
        return FlightRecord(**moved)


@dataclass
class _Log:
    """Collects what happens in a flight; tensors stay on the device."""

    env: MissionEnvironment
    seen: Tensor
    keep_maps: int | None
    metrics: dict[str, list[Tensor]] = field(default_factory=dict)
    positions: list[Tensor] = field(default_factory=list)
    footprints: list[Tensor] = field(default_factory=list)
    film: list[Tensor] = field(default_factory=list)

    def reading(self, state: MissionState) -> None:
        """Note where the UAVs are and which cells they see."""
        fp = self.env.camera.footprint(state.positions)
        self.positions.append(state.positions.clone())
        self.footprints.append(torch.stack((fp.row0, fp.row1, fp.col0, fp.col1), dim=-1))
        _mark_seen(self.seen, self.footprints[-1])

    def measure(self, belief: Tensor, truth: Tensor) -> None:
        """Note the metrics of a round."""
        found = {**map_metrics(belief, truth), "coverage": coverage(self.seen)}
        for name, values in found.items():
            self.metrics.setdefault(name, []).append(values)
        self.film.append(belief[: self.keep_maps].half())


class _Stopwatch:
    """Adds up the time of pieces of work; on a GPU by events, without waiting for them."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        start = time.perf_counter()
        if self._cuda:
            span = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            span[0].record()
        yield
        if self._cuda:
            span[1].record()
            self._spans.append(span)
        else:
            self._seconds += time.perf_counter() - start

    def seconds(self) -> float:
        """Return the total; waits for the GPU."""
        if self._cuda:
            torch.cuda.synchronize()
            return sum(a.elapsed_time(b) for a, b in self._spans) / 1000
        return self._seconds


@torch.no_grad()
def fly(
    env: MissionEnvironment,
    planner: Planner,
    generator: torch.Generator,
    draws: DrawSource | None = None,
    keep_maps: int | None = None,
) -> FlightRecord:
    """Fly E whole missions with one planner and measure after every round.

    Nothing is read back to the host before the last move.

    Args:
        env: the missions.
        planner: flies all of them.
        generator: the planner's own randomness.
        draws: the missions' randomness; the environment's own generator without it.
        keep_maps: number of missions whose truth and beliefs are kept; all without it.

    Returns:
        The record, on the environment's device.
    """
    draws = draws or env
    state = env.reset(draws.draw_reset())
    log = _Log(env, torch.zeros_like(state.truth), keep_maps)
    watch = _Stopwatch(env.device)
    log.measure(torch.full_like(state.global_belief, env.config.mapping.prior), state.truth)
    log.reading(state)
    log.measure(state.global_belief, state.truth)
    rewards, absolutes = [], []
    for _ in range(env.episode_length):
        with watch.running():
            actions, *_ = planner.act(state, generator)
        result = env.step(state, actions, draws.draw_step())
        rewards.append(result.reward)
        absolutes.append(_absolute_reward(env.config, result.absolute))
        log.reading(state)
        log.measure(state.global_belief, state.truth)
    positions = torch.stack(log.positions, dim=1)
    path = env.lattice.metres(positions)
    return FlightRecord(
        planner=planner.name,
        config=env.config,
        metrics={name: torch.stack(values, dim=1) for name, values in log.metrics.items()},
        reward_sum=torch.stack(rewards).sum(0),
        absolute_return=torch.stack(absolutes).sum(0),
        path_length=path.diff(dim=1).norm(dim=-1).sum(dim=(1, 2)),
        altitude_shares=_altitude_shares(positions[..., 2], env.lattice.shape[2]),
        positions=positions,
        path=path,
        footprints=torch.stack(log.footprints, dim=1),
        truth=state.truth[:keep_maps].clone(),
        belief=state.global_belief[:keep_maps].clone(),
        film=torch.stack(log.film, dim=1),
        missions_at_once=env.num_envs,
        planning_seconds=[watch.seconds() / env.episode_length],
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
    """Fly a planner through the missions of a seed, E at a time; the record is on the host.

    The missions depend on configuration, seed, split and device type alone: neither on the
    planner nor on E. A planner that draws at random flies them differently with another E.

    Args:
        env: made for `split`; its generator is not used.
        planner: flies all missions.
        missions: how many, at least 1.
        seed: of the missions, 0 ≤ seed < 2**20.
        split: whose missions: "test" or "validation".
        keep_maps: number of missions whose truth and beliefs are kept.
        streams: makes the missions' randomness of a batch from (env, seed, split, first).
    """
    if missions < 1:
        raise ValueError(f"missions must be at least 1, not {missions}")
    generator = planner_generator(env, seed, split)
    records = []
    for first in range(0, missions, env.num_envs):
        draws = streams(env, seed, split, first)
        wanted = min(max(keep_maps - first, 0), missions - first)
        records.append(fly(env, planner, generator, draws, keep_maps=wanted).cpu())
    return _joined(records, missions)


@torch.no_grad()
def validate(env: MissionEnvironment, planner: Planner) -> dict[str, Tensor]:
    """Fly the E fixed validation missions of the configuration's seed; measure at the end only.

    For use between training steps: the same missions each time, no generator of training's
    touched, nothing read back.

    Args:
        env: made for the validation split.
        planner: flies all missions.

    Returns:
        Tensors [E] on the device: `roi_entropy` and `f1` after the last move, `return`, the
        sum of the rewards, and `absolute_return` as in FlightRecord.
    """
    seed = env.config.environment.seed
    draws = MissionStreams(env, seed, "validation")
    generator = planner_generator(env, seed, "validation")
    state = env.reset(draws.draw_reset())
    total = torch.zeros(env.num_envs, device=env.device)
    absolute = torch.zeros_like(total)
    for _ in range(env.episode_length):
        actions, *_ = planner.act(state, generator)
        result = env.step(state, actions, draws.draw_step())
        total += result.reward
        absolute += _absolute_reward(env.config, result.absolute)
    return {
        "roi_entropy": roi_entropy(state.global_belief, state.truth),
        "f1": f1(state.global_belief, state.truth),
        "return": total,
        "absolute_return": absolute,
    }


def _absolute_reward(config: Config, absolute: Tensor) -> Tensor:
    reward = config.experiment.reward
    return reward.absolute_scale * absolute + reward.absolute_offset


def _mark_seen(seen: Tensor, footprints: Tensor) -> None:
    """Set the cells of `seen` [E, R, C] that lie in `footprints` [E, N, 4], in place."""
    row0, row1, col0, col1 = footprints.unsqueeze(-1).unbind(-2)
    rows = torch.arange(seen.shape[1], device=seen.device)
    cols = torch.arange(seen.shape[2], device=seen.device)
    in_rows = (rows >= row0) & (rows < row1)
    in_cols = (cols >= col0) & (cols < col1)
    for n in range(footprints.shape[1]):  # N passes over a bool map, no [E, N, R, C] tensor
        seen |= in_rows[:, n].unsqueeze(-1) & in_cols[:, n].unsqueeze(-2)


def _altitude_shares(levels: Tensor, num_levels: int) -> Tensor:
    """Return how often each altitude occurs, [E, Z], in `levels` [E, T + 1, N]."""
    one_hot = levels.flatten(1).unsqueeze(-1) == torch.arange(num_levels, device=levels.device)
    return one_hot.to(torch.float32).mean(dim=1)


def _joined(records: Sequence[FlightRecord], missions: int) -> FlightRecord:
    """Join the records of consecutive batches and drop missions past the last one."""
    first = records[0]
    tensors: dict[str, Any] = {
        f.name: torch.cat([getattr(record, f.name) for record in records])[:missions]
        for f in fields(first)
        if isinstance(getattr(first, f.name), Tensor)
    }
    metrics = {
        name: torch.cat([record.metrics[name] for record in records])[:missions]
        for name in first.metrics
    }
    seconds = [value for record in records for value in record.planning_seconds]
    return replace(first, metrics=metrics, planning_seconds=seconds, **tensors)
