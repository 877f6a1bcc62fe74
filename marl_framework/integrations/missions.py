"""E missions whose UAVs act simultaneously: the core that all wrappers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.device import as_device
from marl_framework.mission.environment import MissionEnvironment, StepResult
from marl_framework.mission.seeding import MAX_SEED, split_seed
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import make_builder

GROUP = "uavs"  # name of the agent group
LOWEST = -1.0  # lower bound of observations; the remaining budget reaches -1/budget
_ROUNDING = 1e-5  # tolerance of the observations' upper bound


class Missions:
    """The state of E missions whose UAVs act simultaneously, without transfers to the host.

    In a MissionEnvironment the UAVs choose one after the other and avoid each other's
    destinations (x, y). Agents that act simultaneously do not know the others' destinations, so
    `masks` only excludes moves off the lattice, into zones or obstacles, and moves that a UAV
    cannot afford. `step` resolves conflicts in the UAVs' order: a UAV whose destination is taken
    flies the allowed action with the highest index instead. Actions from
    `environment.lattice.choose_in_missions` never conflict.

    Args:
        config: configuration, or a params file as for `load_config`.
        num_envs: number of missions E.
        device: device of all tensors.
        split: `training`, `validation` or `test`.
        seed: overrides `environment.seed`.

    Attributes:
        names: names of the UAVs, in the order in which conflicts are resolved.
        highest: upper bound of observations.

    Raises:
        ConfigError: the configuration is invalid, or `device` does not exist on this machine.
        ValueError: `num_envs` is below 1.
    """

    def __init__(
        self,
        config: Config | str | Path,
        num_envs: int,
        device: torch.device | str = "cpu",
        split: str = "training",
        seed: int | None = None,
    ) -> None:
        config = config if isinstance(config, Config) else load_config(config)
        self.environment = MissionEnvironment(config, num_envs, as_device(device), split, seed)
        self.builder = make_builder(self.environment)
        self.highest = self.builder.highest + _ROUNDING
        self.names = [f"uav_{i}" for i in range(self.environment.n_agents)]
        self.observation_shape = (config.network_sizes.actor_channels, *self.builder.shape)
        self.team_shape = (len(self.builder.team_channels), *self.builder.shape)
        self.num_actions = self.environment.lattice.num_actions
        self._split, self._seed = split, seed
        self._ids = torch.arange(1, self.num_actions + 1, device=self.environment.device)
        self._state: MissionState | None = None

    @property
    def state(self) -> MissionState:
        """Current state of the missions. Raises RuntimeError before the first `reset`."""
        if self._state is None:
            raise RuntimeError("no mission has started; call reset() first")
        return self._state

    def seed(self, seed: int) -> None:
        """Restart the sequence of missions with `seed` modulo 2**20."""
        self._seed = seed % MAX_SEED
        self.environment.generator.manual_seed(split_seed(self._seed, self._split))

    def move_to(self, split: str) -> None:
        """Switch to another split with the same seed; call `reset` before the next step."""
        if split != self._split:
            old = self.environment
            self.environment = MissionEnvironment(
                old.config, old.num_envs, old.device, split, self._seed
            )
            self._split, self._state = split, None

    def reset(self, mask: Any = None) -> None:
        """Start new missions where `mask` [E] bool is True; without a mask, start all."""
        if mask is not None:
            mask = torch.as_tensor(mask, device=self.environment.device)
        draws = self.environment.draw_reset()
        self._state = self.environment.reset(draws, self._state, mask)

    def observe(self) -> Tensor:
        """Return the observation of each UAV, [E, N, C, X, Y] float32."""
        return self.builder.actor(self.state)

    def team(self) -> Tensor:
        """Return the state of the whole team, [E, C_s, X, Y] float32."""
        return self.builder.team(self.state)

    def masks(self) -> Tensor:
        """Return the allowed actions of each UAV, [E, N, A] bool."""
        return self.environment.lattice.options(self.state)

    def step(self, actions: Any) -> StepResult:
        """Fly one step with `actions` [E, N], 0 … A - 1: a tensor, an array or lists."""
        moves = torch.as_tensor(actions, dtype=torch.int64, device=self.environment.device)
        draws = self.environment.draw_step(reuse=True)
        return self.environment.step(self.state, self.resolve_conflicts(moves), draws)

    def resolve_conflicts(self, actions: Tensor) -> Tensor:
        """Return the actions flown after conflicts in `actions` [E, N] are resolved."""

        def choose(i: int, mask: Tensor) -> Tensor:
            chosen = actions[:, i]
            allowed = mask.gather(1, chosen.unsqueeze(1)).squeeze(1)
            return torch.where(allowed, chosen, (mask * self._ids).argmax(-1))

        return self.environment.lattice.choose_in_missions(self.state, choose)[0]
