"""E missions whose UAVs all act at once: what every wrapper converts to its library's types."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment, StepResult
from marl_framework.mission.seeding import MAX_SEED, split_seed
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder

GROUP = "uavs"
"""Name of the team where a library groups agents."""
LOWEST, HIGHEST = -1.0, 1.0 + 1e-5
"""Bounds of observations: the budget left falls to -1/budget, area means round to just above 1."""


class Missions:
    """Holds the state of E missions and steps it by the core; nothing is read back.

    The core's UAVs choose in order, each one avoiding the (x, y) that those before it have
    chosen. Agents that act at once cannot know these, so `masks` holds what is known before
    anyone chooses, the moves that stay on the lattice, and `step` asks the core's order again:
    a UAV flies the action it was given where the core allows it after the UAVs before it, else
    the allowed action of highest index. Actions chosen by `environment.lattice.choose_in_order`
    are flown as they are.

    Args:
        config: the mission, or a params file as `load_config` takes it.
        num_envs: number of missions E.
        device: where everything lives.
        split: `training`, `validation` or `test`.
        seed: overrides `environment.seed`.

    Attributes:
        names: of the UAVs, in the order in which they choose.
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
        self.environment = MissionEnvironment(config, num_envs, device, split, seed)
        lattice = self.environment.lattice
        self.builder = ObservationBuilder(config, lattice, self.environment.camera)
        self.names = [f"uav_{i}" for i in range(self.environment.n_agents)]
        self.observation_shape = (len(self.builder.actor_channels), *self.builder.shape)
        self.team_shape = (len(self.builder.team_channels), *self.builder.shape)
        self.num_actions = lattice.num_actions
        self._split = split
        self._ids = torch.arange(1, self.num_actions + 1, device=self.environment.device)
        self._state: MissionState | None = None

    @property
    def state(self) -> MissionState:
        """The missions as they stand.

        Raises:
            RuntimeError: `reset` was never called.
        """
        if self._state is None:
            raise RuntimeError("call reset() before anything else")
        return self._state

    def seed(self, seed: int) -> None:
        """Start the stream of draws anew; seeds count modulo 2**20, as many as the core has."""
        number = split_seed(seed % MAX_SEED, self._split)
        self.environment.generator.manual_seed(number)

    def reset(self, mask: Tensor | None = None) -> None:
        """Start new missions, those of `mask` [E] bool; all of them without it."""
        draws = self.environment.draw_reset()
        self._state = self.environment.reset(draws, self._state, mask)

    def observe(self) -> Tensor:
        """Return what each UAV knows: [E, N, C, X, Y] float32."""
        return self.builder.actor(self.state)

    def team(self) -> Tensor:
        """Return what is known of the whole team: [E, C_s, X, Y] float32."""
        return self.builder.team(self.state)

    def masks(self) -> Tensor:
        """Return the actions that stay on the lattice: [E, N, A] bool, True = allowed."""
        return self.environment.lattice.boundary_mask(self.state.positions)

    def step(self, actions: Tensor) -> StepResult:
        """Fly one step.

        Args:
            actions: [E, N] int64, 0 … A - 1.
        """
        draws = self.environment.draw_step(reuse=True)
        return self.environment.step(self.state, self.settle(actions), draws)

    def settle(self, actions: Tensor) -> Tensor:
        """Return what is flown when the UAVs ask for `actions` [E, N]; see the class."""

        def choose(i: int, mask: Tensor) -> Tensor:
            wanted = actions[:, i]
            allowed = mask.gather(1, wanted.unsqueeze(1)).squeeze(1)
            return torch.where(allowed, wanted, (mask * self._ids).argmax(-1))

        return self.environment.lattice.choose_in_order(self.state.positions, choose)[0]
