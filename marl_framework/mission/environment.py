"""Environment that steps E missions of N UAVs together on one device."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.config.types import choices
from marl_framework.kernels.cells import (
    area_pool,
    entropy,
    interest_weight,
    lattice_weights,
    uncertainty,
    weighted_entropy,
)
from marl_framework.kernels.windows import pool_readings
from marl_framework.kernels.words import random_words
from marl_framework.mission.camera import Camera
from marl_framework.mission.disturbances import NUMBERS, Disturbances
from marl_framework.mission.field import NUMBERS as FIELD_NUMBERS
from marl_framework.mission.field import find_fields, find_tables
from marl_framework.mission.fusion import Fusion
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.no_fly_zones import find_zones
from marl_framework.mission.obstacles import NUMBERS as BOX_NUMBERS
from marl_framework.mission.obstacles import Obstacles
from marl_framework.mission.radio import Radio
from marl_framework.mission.reward import TeamReward, Utility
from marl_framework.mission.seeding import split_seed
from marl_framework.mission.state import MissionState, ResetDraws, StepDraws, assign, fill
from marl_framework.mission.terrains.mixture import Terrain


class StepResult(NamedTuple):
    """Result of one step; every field is [E]."""

    reward: Tensor
    """Shared reward of the team, float32."""
    absolute: Tensor
    """Information gained by the readings in this step [bit per cell]."""
    relative: Tensor
    """`absolute` divided by the remaining weighted entropy; see `reward.utility`."""
    terminated: Tensor
    """Whether the mission is over, bool."""
    truncated: Tensor
    """Always False, bool: missions only terminate."""


class MissionEnvironment:
    """E simultaneous missions on one device; nothing is copied back to the host.

    `reset` and `step` depend only on the state and the draws. In a step the UAVs move and measure,
    and all readings are fused into the global belief (the reward is the information gained). Each
    UAV also fuses the readings that it hears (Westheider et al. 2023, section III).

    Args:
        config: configuration of the missions.
        num_envs: number of missions E.
        device: device of all tensors.
        split: training, validation, test or deployment; each has separate seeds and map windows.
        seed: seed to use instead of `environment.seed`.
        rank: process rank in a distributed run; each rank has a separate seed.

    Raises:
        ConfigError: `environment.area` lists several areas, or a part cannot be built.
        TypeError: `config` is not a `Config`.
        ValueError: `num_envs` is below 1.

    Attributes:
        n_agents: size N of the largest team.
        episode_length: number of moves in the longest mission.
        has_inactive: whether UAVs may be inactive, see `MissionState.active`.
        lattice, camera, fusion, terrain, obstacles, disturbances, radio: components.
        zones: no-fly zones; None if there are none.
        fields: parts of the area that missions map; None if they map it all.
        prior: value to which the first fusion resets beliefs; None if `blank` has done that.
        generator: random generator of all draws; absent on the meta device.
    """

    def __init__(
        self,
        config: Config,
        num_envs: int,
        device: torch.device | str,
        split: str = "training",
        seed: int | None = None,
        rank: int = 0,
    ) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config {config!r:.60}: must be a Config; use load_config(FILE)")
        if num_envs < 1:
            raise ValueError(f"num_envs {num_envs}: must be 1 or more")
        self.config = config = config.one_area()
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.n_agents = config.missions.most_agents
        self.episode_length = config.missions.episode_length
        self.has_inactive = config.missions.has_inactive
        tables = find_tables(config)
        self.lattice = Lattice(config, device, tables)
        self.camera = Camera(config, device)
        self.terrain = Terrain(config, device, split)
        self.fields = find_fields(config, self.lattice, split)
        in_field = None if tables is None else tables.moves
        self.zones = find_zones(config, self.terrain, split, in_field)
        self.obstacles = Obstacles(config, self.lattice, split)
        self._needs_moves = self.zones is not None and self.zones.follows_windows
        self._random_fields = None if self.fields is None else self.fields.random
        differ = self._needs_moves or self.obstacles.number > 0
        self._moves_differ = differ or self._random_fields is not None
        self._moves = self.lattice.table()  # moves that are open in all missions
        if in_field is not None:
            self._moves = in_field.to(device)
        if self.zones is not None and not self._needs_moves:
            self._moves = self.zones.moves().to(device)
        self.fusion = Fusion(config, self.camera)
        self.disturbances = Disturbances(config, self.camera, self.lattice)
        self.radio = Radio(config, self.lattice, self.fusion)
        self._all = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._words: Tensor | None = None
        prior = config.mapping.prior
        self.prior = prior if self.fields is None else None
        cells = self.camera.shape[0] * self.camera.shape[1]
        self._reward = TeamReward(config.experiment.reward, cells)
        blank = torch.tensor(prior, dtype=torch.float64)  # on the host
        self._blank = {  # averages and sums of beliefs before any reading
            **dict.fromkeys(("pooled_beliefs", "pooled_global"), prior),
            "entropy": cells * float(entropy(blank)),
            "weighted_entropy": cells * float(weighted_entropy(blank)),
        }
        if self.fusion.tracks_uncertainty:
            names = "pooled_uncertainty", "pooled_global_uncertainty"
            self._blank |= dict.fromkeys(names, float(uncertainty(blank.float())))
        missions, uav = config.missions, config.experiment.uav
        ranges = choices(uav.communication_range)
        self._values = {  # name of a draw: field of the state, and values to choose from
            name: (field, torch.tensor(values, dtype=dtype, device=device))
            for name, field, values, dtype in (
                ("team", "team_size", missions.team_sizes, torch.int64),
                ("budget", "budget", missions.budgets, torch.int64),
                ("range_choice", "communication_range", ranges, torch.float32),
                ("failure_rate", "failure_rate", choices(uav.failure_rate), torch.float32),
                ("crash_rate", "crash_rate", choices(uav.crash_rate), torch.float32),
                ("limit", "limit", missions.cost_limits, torch.float64),
            )
        }
        self._has_cost, self._has_crashes = missions.has_cost, missions.has_crashes
        self._area = lattice_weights(self.camera.shape, self.lattice.shape[:2], device)
        if self.device.type != "meta":
            self.generator = torch.Generator(self.device)
            self.generator.manual_seed(
                split_seed(config.environment.seed if seed is None else seed, split, rank)
            )

    # Randomness ---------------------------------------------------------------------------

    def draw_step(self, reuse: bool = False) -> StepDraws:
        """Draw the random numbers for one step.

        Args:
            reuse: whether to overwrite the sensor's draws from the last call with `reuse`;
                allocating memory in each step costs more than filling it.
        """
        draws, shape = self._draw_reading(reuse), (self.num_envs, self.n_agents)
        if self._has_crashes:
            draws = replace(draws, crashes=self._uniform(*shape))
        return self._disturb(draws)

    def _draw_reading(self, reuse: bool = False) -> StepDraws:
        e, n, (kx, ky) = self.num_envs, self.n_agents, self.camera.window
        if self.fusion.draws_bits:
            keys = torch.empty(e, dtype=torch.int64, device=self.device)
            keys.random_(-(2**63), None, generator=self.generator)
            return StepDraws(keys, self._uniform(e, n, n))
        words = self._words if reuse else None
        if words is None:  # 64 random bits serve four cells
            words = torch.empty(-(-e * n * kx * ky // 4), dtype=torch.int64, device=self.device)
        if reuse:
            self._words = words
        if self.device.type == "cpu":
            random_words(words, self.generator)
        else:
            words.random_(-(2**63), None, generator=self.generator)
        sensor = words.view(torch.int16)[: e * n * kx * ky].view(e, n, kx, ky)
        return StepDraws(sensor, self._uniform(e, n, n))

    def draw_reset(self) -> ResetDraws:
        """Draw the random numbers for E new episodes."""
        x, y, _ = self.lattice.shape
        terrain = self.terrain.draw(self.num_envs, self.generator)
        start = self._uniform(self.num_envs, x * y)
        range_choice, first = self._choice("range_choice"), self._draw_reading()
        drawn = {
            name: self._choice(name)
            for name in ("team", "budget", "failure_rate", "crash_rate", "limit")
            if len(self._values[name][1]) > 1
        }
        # New draws come last, so that old seeds give the same missions.
        boxes = self._uniform(self.num_envs, self.obstacles.number, BOX_NUMBERS)
        drawn |= self.disturbances.draw(self._uniform, self.num_envs, self.n_agents)
        if self._random_fields is not None:
            drawn["field"] = self._uniform(self.num_envs, FIELD_NUMBERS)
        return ResetDraws(terrain, start, range_choice, self._disturb(first), boxes, **drawn)

    def _disturb(self, draws: StepDraws) -> StepDraws:
        e, n = self.num_envs, self.n_agents
        if self.disturbances.needs_numbers:
            draws = replace(draws, numbers=self._uniform(e, n, NUMBERS))
        return replace(draws, delays=self._uniform(e, n, n)) if self.radio.most_delay else draws

    def _choice(self, name: str) -> Tensor:
        field, values = self._values[name]
        shape = (self.num_envs, self.n_agents) if field == "limit" else (self.num_envs,)
        return torch.randint(len(values), shape, generator=self.generator, device=self.device)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    # Transition ---------------------------------------------------------------------------

    def reset(
        self,
        draws: ResetDraws | None = None,
        state: MissionState | None = None,
        mask: Tensor | None = None,
    ) -> MissionState:
        """Start new episodes: build terrains, place the UAVs, take and exchange first readings.

        Args:
            draws: from `draw_reset`, which None calls.
            state: state to overwrite; None creates a new one.
            mask: missions to start, [E] bool; other missions do not change. None starts all.

        Returns:
            `state`, or the new state.
        """
        draws = self.draw_reset() if draws is None else draws
        if state is None:
            state, mask = self.empty_state(), None
        for name, (field, values) in self._values.items():
            if name != "limit" or self._has_cost:
                choice, target = getattr(draws, name), getattr(state, field)
                drawn = values.expand(target.shape) if choice is None else values[choice]
                assign(target, drawn, mask)
        if self._has_cost:
            assign(state.left, state.limit, mask)
        fixed = self._moves.unsqueeze(0) if draws.moves is None else draws.moves
        if self._random_fields is not None:
            assert draws.field is not None
            fixed = self._random_fields.moves(draws.field)
        if draws.moves is None and self._needs_moves:
            raise ValueError("draws.moves: required for zones over map windows; set the open moves")
        sizes = state.team_size
        positions = self.lattice.start_positions(draws.start, sizes, fixed)
        assign(state.sector, self.lattice.sectors.deal(positions, sizes), mask)
        ids = torch.arange(self.n_agents, device=self.device)
        assign(state.active, ids < sizes.unsqueeze(1), mask)
        if mask is None:
            self.terrain.build(draws.terrain, out=state.truth)
        else:
            assign(state.truth, self.terrain.build(draws.terrain), mask)
        if self.fields is not None:
            self.fields.begin(state, draws, mask)
            state.truth.logical_and_(state.inside)
        assign(state.positions, positions, mask)
        if self._moves_differ:
            boxes = self.obstacles.boxes(draws.boxes, positions)
            moves = fixed & ~self.obstacles.closed(boxes)
            assign(state.moves, moves, mask)
            assign(state.open_share, self.lattice.open_share(moves), mask)
        fill(state.t, 0, mask)
        fill(state.noise, 0, mask)
        self.blank(state, mask)
        self.disturbances.begin(state, draws, mask)
        self.radio.send(state, draws.first, mask, first=True)
        started = self._all if mask is None else mask
        self._fuse(state, draws.first, started, blank=self.prior is not None)
        self._reward.begin(state)
        return state

    def step(
        self, state: MissionState, actions: Tensor, draws: StepDraws | None = None
    ) -> StepResult:
        """Move all UAVs, take and exchange readings, and compute rewards; update `state` in place.

        If missions differ in team or length, moves have costs or UAVs crash, finished missions keep
        positions and beliefs and have reward 0. Otherwise all missions end together; then call
        `reset`.

        Args:
            state: the missions.
            actions: allowed actions, [E, N] int64; actions of inactive UAVs are ignored.
            draws: from `draw_step`, which None calls.
        """
        draws = self.draw_step() if draws is None else draws
        positions, running = self.lattice.move(state.positions, actions), self._all
        if self._has_cost:
            costs = self.lattice.costs_now(state).expand(*actions.shape, -1)
            state.left.sub_(costs.gather(2, actions.unsqueeze(2)).squeeze(2) * state.active)
        if self.has_inactive:
            positions = positions.where(state.active.unsqueeze(-1), state.positions)
            running = state.active.any(1)
        self.radio.remember(state, running)
        state.positions.copy_(positions)
        state.t.add_(running)
        self.radio.send(state, draws, running)
        utility = self._fuse(state, draws, running)
        self.radio.receive(state, running)
        reward = self._reward(state, actions, utility)
        terminated = state.t > state.budget
        if self.has_inactive:
            reward = reward.where(running, 0.0)
            state.active.logical_and_(~terminated.unsqueeze(1))
            if self._has_cost:  # a UAV that cannot afford a move is done
                state.active.logical_and_(self.lattice.options(state).any(-1))
            if draws.crashes is not None:  # after the reading, which other UAVs may have heard
                state.active.logical_and_(draws.crashes >= state.crash_rate.unsqueeze(1))
            terminated = ~state.active.any(1)
        truncated = torch.zeros_like(terminated)
        return StepResult(reward, utility.absolute, utility.relative, terminated, truncated)

    def blank(self, state: MissionState, mask: Tensor | None = None) -> None:
        """Set averages and sums to those before any reading; with a field, beliefs as well."""
        if self.fields is not None:
            self.fields.blank(state, self._blank, mask)
            return
        for name, value in self._blank.items():
            fill(getattr(state, name), value, mask)

    # Parts of a step ----------------------------------------------------------------------

    def _fuse(
        self, state: MissionState, draws: StepDraws, running: Tensor, blank: bool = False
    ) -> Utility:
        """Take and fuse the readings of a step; see `Fusion.update`."""
        frames = self.disturbances.frames(state, draws)
        shift = self.disturbances.shift(state, draws)
        return self.fusion.update(state, draws.sensor, running, blank, frames, shift)

    def pooled_uncertainty(self, state: MissionState) -> Tensor:
        """Compute each UAV's pooled uncertainty [E, N, X, Y] from its full belief map.

        Steps update the state's `pooled_uncertainty` only if the configured observation shows it.
        """
        return area_pool(uncertainty(state.beliefs), *self._area)

    def refresh(self, state: MissionState) -> None:
        """Recompute pooled maps and information sums from the full maps, in place.

        Steps update these values; call this method after setting a state by hand.
        """
        readings = pool_readings(self.camera.optics, state.positions, state.readings)
        state.pooled_readings.copy_(readings)
        state.pooled_beliefs.copy_(area_pool(state.beliefs, *self._area))
        state.pooled_global.copy_(area_pool(state.global_belief, *self._area))
        if self.fusion.tracks_uncertainty:
            state.pooled_uncertainty.copy_(self.pooled_uncertainty(state))
            pooled = area_pool(uncertainty(state.global_belief), *self._area)
            state.pooled_global_uncertainty.copy_(pooled)
        left = entropy(state.global_belief)
        if self.fields is not None:
            left = left * state.inside
        weighted = interest_weight(state.global_belief) * left
        for total, cells in ((state.entropy, left), (state.weighted_entropy, weighted)):
            total.copy_(cells.flatten(1).sum(1, dtype=torch.float64))
        self._reward.begin(state)

    def empty_state(self) -> MissionState:
        """Allocate the state of E missions; start them with `reset`."""
        e, n = self.num_envs, self.n_agents
        x, y, _ = self.lattice.shape

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(e, *shape, dtype=dtype, device=self.device)

        return MissionState(
            truth=zeros(*self.camera.shape, dtype=torch.bool),
            beliefs=zeros(n, *self.camera.shape),
            global_belief=zeros(*self.camera.shape),
            positions=zeros(n, 3, dtype=torch.int64),
            t=zeros(dtype=torch.int64),
            readings=zeros(n, *self.camera.window, dtype=torch.int8),
            heard=zeros(n, n, dtype=torch.bool),
            inside=zeros(*((0,) if self.fields is None else self.camera.shape), dtype=torch.bool),
            counted=zeros(*((0,) if self.fields is None else ()), dtype=torch.float64),
            moves=self._repeat_for_missions(self._moves),
            open_share=self._repeat_for_missions(self.lattice.open_share(self._moves)),
            active=zeros(n, dtype=torch.bool).fill_(True),
            team_size=zeros(dtype=torch.int64).fill_(n),
            sector=zeros(n, dtype=torch.int64).fill_(n),
            budget=zeros(dtype=torch.int64).fill_(self.episode_length - 1),
            **{f"pooled_{name}": zeros(n, x, y) for name in ("readings", "beliefs", "uncertainty")},
            **{f"pooled_{name}": zeros(x, y) for name in ("global", "global_uncertainty")},
            **{name: zeros() for name in ("communication_range", "f1")},
            **{name: zeros() for name in ("failure_rate", "crash_rate")},
            **{name: zeros(dtype=torch.float64) for name in ("weighted_entropy", "entropy")},
            **{name: zeros(n, dtype=torch.float64) for name in ("limit", "left")},
            **self.disturbances.empty_state(e, n),
            **self.radio.empty_state(e, n, self.camera.window),
            **self.fusion.empty_state(e, n),
        )

    def _repeat_for_missions(self, table: Tensor) -> Tensor:
        tables = table.expand(self.num_envs, *table.shape)
        return tables.clone() if self._moves_differ else tables
