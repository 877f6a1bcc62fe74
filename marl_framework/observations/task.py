"""Mapping mission as a task for algorithms: environment plus observations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from marl_framework.kernels.policies import choose_actions
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import make_builder
from marl_framework.observations.symmetry import make_symmetries


class MissionTask:
    """E missions as an `algorithms.rollout.TeamTask`.

    Attributes:
        symmetries: symmetries for training; None if disabled.
        metric_names: names of the metrics that `step` returns.
        draw_actions, has_inactive: see `TeamTask`.
    """

    def __init__(self, environment: MissionEnvironment) -> None:
        self.environment = environment
        self.builder = make_builder(environment)
        self.sizes = environment.config.network_sizes
        self.symmetries = make_symmetries(environment.config, environment.device)
        self.num_envs = environment.num_envs
        self.n_agents = environment.n_agents
        self.has_inactive = environment.has_inactive
        self.episode_length = environment.episode_length
        self.device = environment.device
        self.generator = environment.generator
        levels = range(environment.lattice.shape[2])
        self.metric_names = ("absolute", "relative", *(f"altitude_{z}" for z in levels))
        self._levels = torch.arange(len(levels), device=self.device)
        self._state: MissionState | None = None
        uses_kernels = self.builder.uses_kernels
        self.draw_actions: Callable[..., None] | None = self._draw_actions if uses_kernels else None

    @property
    def state(self) -> MissionState:
        """Current state of the missions."""
        if self._state is None:
            self._state = self.environment.reset()
        return self._state

    @property
    def active(self) -> Tensor:
        """UAVs that are active now, [E, N] bool."""
        return self.state.active

    def reset(self) -> None:
        """Start E new missions; reuse the buffers."""
        self._state = self.environment.reset(state=self._state)

    def observe(self, out: Tensor | None = None) -> Tensor:
        """Return observations [E, N, C_a, X, Y], written into `out` if given."""
        return self.builder.actor(self.state, out)

    def choose_in_order(self, choose: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Let the UAVs choose in order; return actions [E, N] and masks [E, N, A]."""
        return self.environment.lattice.choose_in_missions(self.state, choose)

    def critic_maps(self, actions: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the critic's additional maps, [E, N, C_c - C_a, X, Y]; `out` as in `observe`."""
        return self.builder.critic_only(self.state, actions, out)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Fly one step; return the reward [E] and metrics [E, M] (`metric_names`)."""
        active = self.active.clone() if self.has_inactive else None
        result = self.environment.step(self.state, actions, self.environment.draw_step(reuse=True))
        at_level = self.state.positions[..., 2:] == self._levels
        if active is not None:
            at_level = at_level & active.unsqueeze(-1)
        metrics = torch.stack((result.absolute, result.relative), dim=1)
        return result.reward, torch.cat((metrics, at_level.sum(1).to(metrics.dtype)), dim=1)

    def _draw_actions(
        self, logits: Tensor, uniform: Tensor, epsilon: Tensor, *outputs: Tensor
    ) -> None:
        """See `TeamTask`; custom networks may return logits of any precision and layout."""
        state, offsets = self.state, self.environment.lattice.offsets
        missions = state.positions, state.moves, state.active, offsets
        choose_actions(logits.float().contiguous(), uniform, epsilon, *missions, *outputs)
