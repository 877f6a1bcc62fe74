"""The mission environment: E missions of N UAVs, stepped together on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config import Config
from marl_framework.mission.area import area_pool, area_weights
from marl_framework.mission.belief import bayes_update, weighted_entropy
from marl_framework.mission.camera import Camera, Footprint
from marl_framework.mission.communication import hear
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.reward import Utility, information_gain
from marl_framework.mission.seeding import split_seed
from marl_framework.mission.state import MissionState
from marl_framework.mission.terrain import Terrain, TerrainDraws


@dataclass
class StepDraws:
    """Randomness of one step."""

    sensor: Tensor
    """[E, N, K_x, K_y] int16, uniform over all 16-bit integers."""
    communication: Tensor
    """[E, N, N] float32 in [0, 1)."""

    def __getitem__(self, index: slice) -> StepDraws:
        """Select missions by a slice."""
        return StepDraws(self.sensor[index], self.communication[index])


@dataclass
class ResetDraws:
    """Randomness of the start of an episode."""

    terrain: TerrainDraws
    start: Tensor
    """[E, X·Y] float32 in [0, 1): the N largest choose the start cells."""
    range_choice: Tensor
    """[E] int64, index into the sampled communication ranges."""
    first: StepDraws
    """Noise and radio of the first reading."""


class StepResult(NamedTuple):
    """What a step returns; every field is [E]."""

    reward: Tensor
    """Shared reward of the team, float32."""
    absolute: Tensor
    """Information gained by this step's readings [bit per cell]."""
    relative: Tensor
    """The same over the weighted entropy that was left."""
    terminated: Tensor
    """The mission has made its last move, bool."""
    truncated: Tensor
    """Always False: missions end by their budget alone."""


class MissionEnvironment:
    """E missions at once; all tensors lie on one device and nothing is read back.

    `reset` and `step` are deterministic functions of the state and of the draws they are
    given; `draw_reset` and `draw_step` fill those from the environment's own generator.
    One step, in this order: the UAVs move and measure, the global belief takes all readings
    (their information is the reward), then each UAV hears others and fuses what it heard, so
    that the state is ready to be observed (Westheider et al. 2023, section III).

    Args:
        config: the mission.
        num_envs: number of missions E.
        device: where everything lives.
        split: `training`, `validation` or `test`: seeds and raster windows are disjoint.
        seed: overrides `environment.seed`.
        rank: number of the process in a distributed run; each has its own stream.
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
        self.config = config
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.n_agents = config.experiment.missions.n_agents
        self.episode_length = config.episode_length
        self.lattice = Lattice(config, device)
        self.camera = Camera(config, device)
        self.terrain = Terrain(config, device, split)
        self._prior = config.mapping.prior
        self._uav = config.experiment.uav
        self._reward = config.experiment.reward
        self._cells = self.camera.shape[0] * self.camera.shape[1]
        self._ranges = torch.tensor(
            (self._uav.communication_range,) if self._uav.fix_range else self._uav.sampled_ranges,
            dtype=torch.float32,
            device=device,
        )
        x, y, _ = self.lattice.shape
        self._area = tuple(
            area_weights(n, m).float().to(device)
            for n, m in zip(self.camera.shape, (x, y), strict=True)
        )
        if self.device.type != "meta":
            self.generator = torch.Generator(self.device)
            self.generator.manual_seed(
                split_seed(config.environment.seed if seed is None else seed, split, rank)
            )

    # Randomness ---------------------------------------------------------------------------

    def draw_step(self) -> StepDraws:
        """Draw the randomness of a step from the generator."""
        e, n, (kx, ky) = self.num_envs, self.n_agents, self.camera.window
        words = -(-e * n * kx * ky // 4)  # 64 random bits serve four cells
        bits = torch.empty(words, dtype=torch.int64, device=self.device)
        bits.random_(-(2**63), None, generator=self.generator)
        sensor = bits.view(torch.int16)[: e * n * kx * ky].view(e, n, kx, ky)
        return StepDraws(sensor, self._uniform(e, n, n))

    def draw_reset(self) -> ResetDraws:
        """Draw the randomness of E new episodes from the generator."""
        x, y, _ = self.lattice.shape
        return ResetDraws(
            terrain=self.terrain.draw(self.num_envs, self.generator),
            start=self._uniform(self.num_envs, x * y),
            range_choice=torch.randint(
                len(self._ranges), (self.num_envs,), generator=self.generator, device=self.device
            ),
            first=self.draw_step(),
        )

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    # Transition ---------------------------------------------------------------------------

    def reset(
        self, draws: ResetDraws, state: MissionState | None = None, mask: Tensor | None = None
    ) -> MissionState:
        """Start new episodes: terrain, start positions, first reading, first messages.

        Args:
            draws: from `draw_reset`.
            state: reuse its buffers; without it a new state is made.
            mask: [E] bool, the missions to start anew; the others keep every bit. All
                missions without it.

        Returns:
            The state, `state` itself where one was given.
        """
        if state is None:
            state, mask = self._empty_state(), None
        active = torch.ones_like(state.t, dtype=torch.bool) if mask is None else mask
        truth = self.terrain.build(draws.terrain)
        positions = self.lattice.start_positions(draws.start)
        _assign(state.truth, truth, active)
        _assign(state.positions, positions, active)
        _assign(state.communication_range, self._ranges[draws.range_choice], active)
        state.t.masked_fill_(active, 0)
        for belief in (
            state.beliefs,
            state.global_belief,
            state.pooled_beliefs,
            state.pooled_global,
        ):
            belief.masked_fill_(_expand(active, belief), self._prior)
        blank = weighted_entropy(torch.full_like(state.weighted_entropy, self._prior))
        _assign(state.weighted_entropy, blank * self._cells, active)
        self._measure(state, draws.first.sensor, active)
        self.fuse_global(state, active)
        self._communicate(state, draws.first.communication, active)
        return state

    def step(self, state: MissionState, actions: Tensor, draws: StepDraws) -> StepResult:
        """Move all UAVs, measure, reward, communicate; the state is advanced in place.

        Args:
            state: the missions.
            actions: [E, N] int64, allowed actions.
            draws: from `draw_step`.
        """
        state.positions.copy_(self.lattice.move(state.positions, actions))
        state.t.add_(1)
        self._measure(state, draws.sensor)
        utility = self.fuse_global(state)
        self._communicate(state, draws.communication)
        terminated = state.t >= self.episode_length
        return StepResult(
            reward=self._reward.relative_scale * utility.relative + self._reward.relative_offset,
            absolute=utility.absolute,
            relative=utility.relative,
            terminated=terminated,
            truncated=torch.zeros_like(terminated),
        )

    # The parts of a step ------------------------------------------------------------------

    def _measure(self, state: MissionState, bits: Tensor, active: Tensor | None = None) -> None:
        """Take a reading at each UAV and put it into the UAV's own belief."""
        readings = self.camera.measure(state.truth, state.positions, bits)
        _assign(state.readings, readings, active)
        footprint = self.camera.footprint(state.positions)
        noise = self.camera.noise[state.positions[..., 2]].unsqueeze(-1)
        index = self.camera.window_index(footprint)
        signs = _only(state.readings.flatten(2), active)
        own = state.beliefs.flatten(2)
        before = own.gather(2, index)
        after = bayes_update(before, signs, noise, self._prior)
        own.scatter_(2, index, after)
        change = (after - before).view(*index.shape[:2], *self.camera.window)
        state.pooled_beliefs.add_(area_pool(change, *self.camera.map_weights(state.positions)))

    def hear(self, state: MissionState, uniform: Tensor) -> Tensor:
        """Return who hears whom now, [E, N, N] bool, from uniform draws [E, N, N]."""
        return hear(
            self.lattice.metres(state.positions),
            state.communication_range,
            uniform,
            self._uav.failure_rate,
        )

    def _communicate(
        self, state: MissionState, uniform: Tensor, active: Tensor | None = None
    ) -> None:
        _assign(state.heard, self.hear(state, uniform), active)
        self.fuse_heard(state, active)

    def fuse_heard(self, state: MissionState, active: Tensor | None = None) -> None:
        """Update own beliefs with the latest readings of the UAVs heard, in the order of ids.

        A UAV's own reading is in its belief already. The order matters where clamping bites,
        hence the loop over senders; all missions and receivers are updated at once.
        """
        kx, ky = self.camera.window
        index = self.camera.window_index(self.camera.footprint(state.positions))
        rows, cols = self.camera.map_weights(state.positions)
        noise = self.camera.noise[state.positions[..., 2]]
        beliefs = state.beliefs.flatten(2)
        itself = torch.eye(self.n_agents, dtype=torch.bool, device=state.heard.device)
        listens = _only(state.heard & ~itself, active)
        for j in range(self.n_agents):
            at = index[:, j : j + 1].expand(-1, self.n_agents, -1)
            before = beliefs.gather(2, at)
            signs = state.readings[:, j : j + 1].flatten(2) * listens[:, :, j : j + 1]
            after = bayes_update(before, signs, noise[:, j].view(-1, 1, 1), self._prior)
            beliefs.scatter_(2, at, after)
            change = (after - before).unflatten(2, (kx, ky))
            state.pooled_beliefs.add_(area_pool(change, rows[:, j : j + 1], cols[:, j : j + 1]))

    def fuse_global(self, state: MissionState, active: Tensor | None = None) -> Utility:
        """Update the global belief with the latest readings of all UAVs, in the order of ids.

        Returns:
            The information these readings gained.
        """
        footprint = self.camera.footprint(state.positions)
        index = self.camera.window_index(footprint)
        signs = _only(state.readings.flatten(2), active)
        noise = self.camera.noise[state.positions[..., 2]].unsqueeze(-1)
        belief = state.global_belief.flatten(1)
        before = belief.gather(1, index.flatten(1)).view_as(signs)
        for j in range(self.n_agents):
            p = belief.gather(1, index[:, j])
            belief.scatter_(1, index[:, j], bayes_update(p, signs[:, j], noise[:, j], self._prior))
        after = belief.gather(1, index.flatten(1)).view_as(signs)
        counted = self._first_seen_by(footprint)
        utility, remaining = information_gain(
            before, after, counted.flatten(2), state.weighted_entropy, self._cells
        )
        _assign(state.weighted_entropy, remaining, active)
        change = (after - before).view_as(counted) * counted
        pooled = area_pool(change, *self.camera.map_weights(state.positions))
        state.pooled_global.add_(pooled.sum(1))
        return utility

    def _first_seen_by(self, footprint: Footprint) -> Tensor:
        """Return the window cells that no UAV of a lower id sees too, [E, N, K_x, K_y] bool."""
        window = Footprint(*(field.unsqueeze(2) for field in footprint))
        others = Footprint(*(field.unsqueeze(1) for field in footprint))
        rows, cols = self.camera.inside(window, others)  # [E, N window, N footprint, K]
        earlier = torch.ones(self.n_agents, self.n_agents, device=rows.device).tril(-1)
        covered = (rows * earlier.unsqueeze(-1)).mT @ cols.float()
        own_rows, own_cols = self.camera.inside(footprint, footprint)
        return (covered == 0) & own_rows.unsqueeze(-1) & own_cols.unsqueeze(-2)

    def refresh(self, state: MissionState) -> None:
        """Recompute pooled maps and information sums from the full maps, in place.

        Steps keep them up to date by themselves; this is for states set by hand.
        """
        state.pooled_beliefs.copy_(area_pool(state.beliefs, *self._area))
        state.pooled_global.copy_(area_pool(state.global_belief, *self._area))
        total = weighted_entropy(state.global_belief).flatten(1).sum(1, dtype=torch.float64)
        state.weighted_entropy.copy_(total)

    def _empty_state(self) -> MissionState:
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
            communication_range=zeros(),
            readings=zeros(n, *self.camera.window, dtype=torch.int8),
            heard=zeros(n, n, dtype=torch.bool),
            pooled_beliefs=zeros(n, x, y),
            pooled_global=zeros(x, y),
            weighted_entropy=zeros(dtype=torch.float64),
        )


def _expand(mask: Tensor, like: Tensor) -> Tensor:
    return mask.view(-1, *(1,) * (like.dim() - 1))


def _assign(target: Tensor, value: Tensor, active: Tensor | None) -> None:
    """Write `value` into `target` for the active missions."""
    target.copy_(value if active is None else torch.where(_expand(active, value), value, target))


def _only(values: Tensor, active: Tensor | None) -> Tensor:
    """Zero the values of inactive missions."""
    return values if active is None else values * _expand(active, values)
