"""Fly planners through whole missions and record metrics.

Rounds count readings: round 0 is before any reading, round 1 follows the first reading at the
start, round T + 1 follows the last move.

Evaluation missions are the same for every planner and every batch size. Each has its own random
generator (terrain, start, sensor, radio), seeded by evaluation seed, split and mission number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from marl_framework.command_line import warn
from marl_framework.config.model import Config
from marl_framework.evaluation.metrics import coverage, map_metrics, roi_entropy
from marl_framework.kernels.cells import covered
from marl_framework.mission.accuracy import f1
from marl_framework.mission.camera_noise import CameraNoise
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.no_fly_zones import NoFlyZones
from marl_framework.mission.seeding import MAX_RANK, MAX_SEED, split_seed
from marl_framework.mission.state import MissionState, ResetDraws, StepDraws
from marl_framework.observations.completion import MapCompletion
from marl_framework.planners.protocol import Planner
from marl_framework.stage_timer import StageTimer

COMPLETED = {f"completed_{name}": name for name in ("roi_entropy", "f1", "ece", "brier")}
"""Metrics of completed maps, after the last round, with those of `map_metrics` that they are."""
_PLANNER_STREAM = MAX_RANK - 1  # missions use the streams with lower numbers


@dataclass
class FlightRecord:
    """E missions flown by one planner; E is the first axis of every tensor."""

    planner: str
    config: Config
    metrics: dict[str, Tensor]
    """Metrics of the global belief after each round, by name, [E, T + 2] each: `roi_entropy`, `f1`,
    `rmse`, `wrmse`, `mll`, `wmll`, `ece`, `brier` (see `map_metrics`) and `coverage`. Without
    curves only after the last round, [E, 1], as always those of completed maps (see `COMPLETED`)
    and their `learned_caution`."""
    episode_return: Tensor
    """Undiscounted return, [E] float32."""
    absolute_return: Tensor
    """Sum over steps of absolute_scale · absolute gain + absolute_offset, [E]."""
    path_length: Tensor
    """Distance flown by the whole team [m], [E]."""
    altitude_shares: Tensor
    """Share of the readings taken at each altitude, lowest first, [E, Z]."""
    positions: Tensor
    """Lattice indices (x, y, z) at each reading, [E, T + 1, N, 3] int64."""
    path: Tensor
    """Coordinates (x, y, altitude) at each reading [m], [E, T + 1, N, 3] float32."""
    footprints: Tensor
    """Cells read, half-open (row0, row1, col0, col1), [E, T + 1, N, 4] int64; 0 for no reading."""
    active: Tensor
    """Whether each UAV took each reading, [E, T + 1, N] bool; inactive UAVs do not move."""
    truth: Tensor
    """Ground truth of the first M ≤ E missions, [M, R, C] bool."""
    belief: Tensor
    """Final global belief of the first M missions, [M, R, C]."""
    completed: Tensor | None
    """`belief` completed, [M, R, C]; None without a completion."""
    film: Tensor
    """Global belief of the first M missions after each round, [M, T + 2, R, C] float16; without
    curves only after the last."""
    missions_per_batch: int
    """Number of missions flown at once."""
    planning_seconds: list[float]
    """Mean planning time per step in each batch [s]."""
    window_origins: Tensor | None = None
    """Lower left corner of each window on the measured map [m], [E, 2] float64; NaN on other
    terrain."""
    boxes: Tensor | None = None
    """Obstacles (x0, x1, y0, y1, height) [m], [E, K, 5] float64, padded with NaN."""
    inside: Tensor | None = None
    """Cells of the field of the first M missions, [M, R, C] bool; None without fields."""
    zones: NoFlyZones | None = None
    numbers: tuple[int, ...] = ()
    """Numbers of the UAVs of one mission, from 1; see `alone`."""

    def alone(self, index: int) -> FlightRecord:
        """Return the record of one mission (E = 1), with only its readings and their UAVs.

        The tensors are views.
        """
        one: FlightRecord = combined([self], lambda parts: parts[0][index : index + 1])
        team, readings = one.active[0].any(0), int(one.active.any(2).sum())
        own: dict[str, Any] = {
            name: getattr(one, name)[:, :readings, team]
            for name in ("positions", "path", "footprints", "active")
        }
        metrics = {name: values[:, : readings + 1] for name, values in one.metrics.items()}
        config = self.config
        if config.missions.has_inactive:
            config = config.of_mission(int(team.sum()), budget=readings - 2)
        film = one.film[:, : readings + 1]
        numbers = tuple((team.nonzero()[:, 0] + 1).tolist())
        return replace(one, config=config, metrics=metrics, film=film, numbers=numbers, **own)


def combined(parts: Sequence[Any], combine: Callable[[Any], Tensor]) -> Any:
    """Combine tensors within tuples, dictionaries and dataclasses; other values are from part 0."""
    first = parts[0]
    if isinstance(first, Tensor):
        return combine(parts)
    if isinstance(first, tuple):
        return tuple(combined(column, combine) for column in zip(*parts, strict=True))
    if isinstance(first, dict):
        return {name: combined([part[name] for part in parts], combine) for name in first}
    if is_dataclass(first) and not isinstance(first, type):
        return replace(first, **combined([vars(part) for part in parts], combine))
    return first


class MissionStreams:
    """Random draws of missions `first` … `first + E - 1`, with one generator per mission."""

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
        """Draw the random numbers for the start of E missions."""
        return combined([env.draw_reset() for env in self._each()], torch.cat)

    def draw_step(self) -> StepDraws:
        """Draw the random numbers for one step of E missions."""
        return combined([env.draw_step() for env in self._each()], torch.cat)

    def _each(self) -> Iterator[MissionEnvironment]:
        for generator in self._generators:
            self._single.generator = generator
            yield self._single


def planner_generator(env: MissionEnvironment, seed: int, split: str = "test") -> torch.Generator:
    """Return a generator for a planner's random choices, independent of all missions."""
    return torch.Generator(env.device).manual_seed(split_seed(seed, split, _PLANNER_STREAM))


def _mission_seed(seed: int, split: str, number: int) -> int:
    """Return a mission's seed; further missions than streams use the next evaluation seed."""
    block, stream = divmod(number, _PLANNER_STREAM)
    return split_seed((seed + block) % MAX_SEED, split, stream)


class FlightLog:
    """Collects what a `FlightRecord` holds, reading by reading, on the device.

    `start` has the draws for the start of the E missions, `state` the missions at their start. Maps
    of `keep_maps` missions are recorded; None for all. Without `curves`, metrics are only those
    after the last reading, which saves most of their time. `completion` completes the last belief.
    """

    def __init__(
        self,
        env: MissionEnvironment,
        start: ResetDraws,
        state: MissionState,
        keep_maps: int | None = None,
        curves: bool = True,
        completion: MapCompletion | None = None,
    ) -> None:
        self._env, self._truth, self._kept = env, state.truth, keep_maps
        self._curves, self._completion = curves, completion
        self._noise = None if completion is None else CameraNoise(env.camera, env.num_envs)
        self._boxes = env.obstacles.boxes(start.boxes, state.positions)
        self._origins = env.terrain.window_origins(start.terrain)
        self._readings: list[tuple[Tensor, Tensor, Tensor]] = []  # places, active UAVs, footprints
        self._inside = state.inside.clone() if env.fields is not None else None
        self._seen = torch.zeros_like(state.truth)
        self._film: list[Tensor] = []
        self._rounds: list[dict[str, Tensor]] = []
        blank = torch.full_like(state.global_belief, env.config.mapping.prior)
        if curves:
            self._add_belief(blank if self._inside is None else blank * self._inside)

    def add(self, state: MissionState, active: Tensor) -> None:
        """Add the readings of a round; `active` says which UAVs took one, [E, N] bool."""
        read = active & state.readings.flatten(2).any(-1)  # a lost frame has no readings
        footprints = self._env.camera.boxes(state.positions)[..., :4] * read.unsqueeze(-1)
        self._readings.append((state.positions.clone(), active, footprints))
        if self._noise is not None:
            self._noise.add(state, active)
        self._seen |= cells_in_view(footprints, self._env.camera.shape)
        if self._inside is not None:
            self._seen &= self._inside
        self._belief = state.global_belief
        if self._curves:
            self._add_belief(self._belief)

    def _add_belief(self, belief: Tensor) -> None:
        metrics = map_metrics(belief, self._truth, self._seen, self._inside)
        self._rounds.append({**metrics, "coverage": coverage(self._seen, self._inside)})
        self._film.append(belief[: self._kept].half())

    def record(
        self, planner: str, rewards: Tensor, absolutes: Tensor, seconds: float
    ) -> FlightRecord:
        """Return the record; see `FlightRecord` for returns [E] and planning time per move [s]."""
        if not self._curves:
            self._add_belief(self._belief)
        env, rounds = self._env, self._rounds
        metrics = {name: torch.stack([each[name] for each in rounds], dim=1) for name in rounds[0]}
        completed = None
        if self._completion is not None and self._noise is not None:
            caution = self._noise.caution()
            completed = self._completion(self._belief, caution, self._inside)
            found = map_metrics(completed, self._truth, self._seen, self._inside)
            metrics |= {name: found[of].unsqueeze(1) for name, of in COMPLETED.items()}
            metrics["learned_caution"] = caution.unsqueeze(1)
        columns = zip(*self._readings, strict=True)
        positions, active, footprints = (torch.stack(column, dim=1) for column in columns)
        path = env.lattice.metres(positions)
        levels = torch.arange(env.lattice.shape[2], device=env.device)
        at_levels = (positions[..., 2:] == levels) & active.unsqueeze(-1)
        return FlightRecord(
            planner=planner,
            config=env.config,
            metrics=metrics,
            episode_return=rewards,
            absolute_return=absolutes,
            path_length=path.diff(dim=1).norm(dim=-1).sum(dim=(1, 2)),
            altitude_shares=at_levels.sum(dim=(1, 2), dtype=torch.float32)
            / active.sum(dim=(1, 2)).unsqueeze(1),
            positions=positions,
            path=path,
            footprints=footprints,
            active=active,
            truth=self._truth[: self._kept].clone(),
            belief=self._belief[: self._kept].clone(),
            completed=None if completed is None else completed[: self._kept].clone(),
            film=torch.stack(self._film, dim=1),
            missions_per_batch=env.num_envs,
            planning_seconds=[seconds],
            window_origins=self._origins,
            boxes=self._boxes,
            inside=None if self._inside is None else self._inside[: self._kept],
            zones=env.zones,
        )


@torch.no_grad()
def fly(
    env: MissionEnvironment,
    planner: Planner,
    generator: torch.Generator,
    draws: MissionEnvironment | MissionStreams | None = None,
    keep_maps: int | None = None,
    curves: bool = True,
    completion: MapCompletion | None = None,
) -> FlightRecord:
    """Fly the E missions of an environment; record metrics on the device.

    No data is transferred to the host before the last move.

    Args:
        env: environment of E missions.
        planner: planner that flies all missions.
        generator: generator for the planner's random choices.
        draws: source of the missions' random draws; None for `env`.
        keep_maps: number of missions whose ground truth and beliefs are recorded; None for all.
        curves: whether to record metrics after every round, or only after the last.
        completion: completes the final beliefs; None for no completed maps.
    """
    start = (draws := draws or env).draw_reset()
    state = env.reset(start)
    timer = StageTimer(env.device)
    log = FlightLog(env, start, state, keep_maps, curves, completion)
    log.add(state, state.active.clone())
    rewards, absolutes, reward_config = [], [], env.config.experiment.reward
    for _ in range(env.episode_length):
        with timer("planning"):
            actions, *_ = planner.act(state, generator)
        active = state.active.clone()
        result = env.step(state, actions, draws.draw_step())
        rewards.append(result.reward)
        absolute = reward_config.absolute_scale * result.absolute + reward_config.absolute_offset
        absolutes.append(absolute * active.any(1))
        log.add(state, active)
    returns = torch.stack(rewards).sum(0), torch.stack(absolutes).sum(0)
    return log.record(planner.name, *returns, timer.seconds()["planning"] / env.episode_length)


def evaluate(
    env: MissionEnvironment,
    planner: Planner,
    missions: int,
    seed: int,
    split: str = "test",
    keep_maps: int = 1,
    streams: type[MissionStreams] = MissionStreams,
    curves: bool = True,
    completion: MapCompletion | None = None,
) -> FlightRecord:
    """Fly the missions of an evaluation seed in batches of E; return the record on the CPU.

    The missions depend only on configuration, seed (0 ≤ seed < 2**20), split and device type, and
    on a GPU on whether Triton draws the sensor's bits. The actions of a random planner also depend
    on E. `env` must be an environment of `split`; its generator is not used. `keep_maps` is the
    number of missions whose ground truth and beliefs are recorded; for `curves` and `completion`
    see `fly`. Raises ValueError for less than 1 mission.
    """
    if missions < 1:
        raise ValueError(f"missions must be at least 1, not {missions}")
    generator = planner_generator(env, seed, split)
    records = []
    for first in range(0, missions, env.num_envs):
        draws = streams(env, seed, split, first)
        kept = min(max(keep_maps - first, 0), missions - first)
        batch = fly(env, planner, generator, draws, kept, curves, completion)
        records.append(combined([batch], lambda parts: parts[0].cpu()))
    record: FlightRecord = combined(records, lambda parts: torch.cat(parts)[:missions])
    seconds = [value for each in records for value in each.planning_seconds]
    return replace(record, planning_seconds=seconds)


@torch.no_grad()
def validate(env: MissionEnvironment, planner: Planner) -> dict[str, Tensor]:
    """Fly E fixed missions of the validation split, with the configuration's seed.

    Every call flies the same missions, without using the training's generators and without
    synchronising with the host. Returns `roi_entropy` and `f1` after the last move and the
    undiscounted `return`, [E] each, on the device.
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
    """Warn of missions without a region of interest, whose initial ROI entropy [E] is exactly 0."""
    if empty := int((roi_entropy == 0).sum()):
        warn(
            f"warning: {empty} of {len(roi_entropy)} missions have no region of interest; their "
            "ROI entropy and F1 are 0 and are included in the means. On a measured map, choose "
            "another sensor.simulation.raster.threshold"
        )


def cells_in_view(footprints: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the cells in any of N footprints, [..., R, C] bool, for maps of `shape` (R, C).

    Footprints are half-open (row0, row1, col0, col1), [..., N, 4] int64.
    """
    row0, row1, col0, col1 = footprints.unbind(-1)
    rows = covered(row0, row1, shape[0], shape[0])
    cols = covered(col0, col1, shape[1], shape[1])
    return rows @ cols.mT > 0  # the product counts footprints
