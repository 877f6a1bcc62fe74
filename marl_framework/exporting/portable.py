"""Trained teams as self-contained modules for export."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.policy import best_actions, policy_probabilities
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.config.types import choices
from marl_framework.kernels.cells import area_pool, lattice_weights, uncertainty
from marl_framework.mission.camera import Camera
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import Seen
from marl_framework.observations.builder import ObservationBuilder

_UNLIMITED_RANGE = 1e9  # [m], as JSON has no infinity
_UNSUPPORTED = {
    "has_zones": "--set environment.field=null --set experiment.constraints.no_fly_zones=null "
    "--set experiment.constraints.obstacles.number=0",
    "has_cost": "--set experiment.constraints.cost.limit=null",
    "has_crashes": "--set experiment.uav.crash_rate=0",
}
"""Mission properties that a portable team does not support, and options to disable them."""
_PLAIN = {"compute": {"compile": False}, "experiment": {"uav": {"delay": 0}}}
"""Settings of a portable team; its user passes the messages that have arrived."""


class PortableActor(nn.Module):
    """Actor network with action masking, for export.

    Args:
        actor: maps observations [B, C_a, X, Y] to logits [B, A].
    """

    inputs = ("observation", "mask")
    outputs = ("probabilities",)

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = deepcopy(actor)

    def forward(self, observation: Tensor, mask: Tensor) -> Tensor:
        """Return the action probabilities [B, A] float32, 0 where masked.

        Args:
            observation: one observation per UAV, [B, C_a, X, Y] float32.
            mask: allowed actions, at least one per UAV, [B, A] bool.
        """
        return policy_probabilities(self.actor(observation), mask, 0.0)


class PortableTeam(nn.Module):
    """Actor network with observation and masks, for export: maps to actions.

    The UAVs choose in order, each the most probable allowed action, as in `LearnedPlanner`.

    Args:
        actor: maps observations [B, C_a, X, Y] to logits [B, A].
        config: configuration of the mission; determines lattice, camera and team size.
        device: device of the actor.

    Attributes:
        inputs: argument names of `forward`; `starts` only for teams that see sectors.

    Raises:
        ConfigError: the mission has zones, obstacles, a cost limit or crashes.
    """

    outputs = ("actions", "probabilities")

    def __init__(self, actor: nn.Module, config: Config, device: torch.device | str) -> None:
        super().__init__()
        for name, settings in _UNSUPPORTED.items():
            if getattr(config.missions, name):
                advice = f"add {settings}, or omit --observations and mask moves yourself"
                raise ConfigError(f"--observations: not supported in this mission; {advice}")
        self.actor = deepcopy(actor)
        self._lattice = Lattice(config, device)
        self._camera = Camera(config, device)
        plain = with_changes(config, _PLAIN, "an exported team")
        self._builder = ObservationBuilder(plain, self._lattice, self._camera)
        self._budget, self._size = max(config.missions.budgets), config.missions.most_agents
        self._range = _shortest_range(config)
        self.inputs: tuple[str, ...] = ("positions", "t", "heard", "beliefs", "readings")
        if {"sector", "centred_sector"} & {*self._builder.actor_channels}:
            self.inputs += ("starts",)
        self._area = lattice_weights(self._camera.shape, self._lattice.shape[:2], device)

    def forward(
        self,
        positions: Tensor,
        t: Tensor,
        heard: Tensor,
        beliefs: Tensor,
        readings: Tensor,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the actions [E, N] int64 and action probabilities [E, N, A] float32.

        Args:
            positions: lattice indices (x, y, z), [E, N, 3] int64.
            t: number of moves made, [E] int64.
            heard: whether UAV i hears UAV j, True for i = j, [E, N, N] bool.
            beliefs: each UAV's own belief, P(region of interest), [E, N, R, C] float32.
            readings: latest reading of each UAV in its map window, +1 or -1, and 0 outside the
                footprint, [E, N, K_x, K_y] int8.
            starts: positions before the first move; required for teams that see sectors.

        Raises:
            ValueError: `starts` is required but missing.
        """
        sizes = torch.full_like(t, self._size)
        if starts is not None:
            sector = self._lattice.sectors.deal(starts, sizes)
        elif "starts" in self.inputs:
            raise ValueError("starts: required for teams that see sectors")
        else:
            sector = torch.full_like(positions[..., 0], self._size)
        pooled = area_pool(beliefs, *self._area)
        tiles = self._camera.tile_weights(positions)
        state = Seen(
            beliefs=beliefs,
            positions=positions,
            t=t,
            heard=heard,
            pooled_beliefs=pooled,
            pooled_readings=area_pool(readings.to(beliefs.dtype), *tiles),
            pooled_uncertainty=area_pool(uncertainty(beliefs), *self._area),
            open_share=torch.ones_like(pooled[:, 0]),
            active=torch.ones_like(positions[..., 0], dtype=torch.bool),
            team_size=sizes,
            sector=sector,
            communication_range=torch.full_like(pooled[:, 0, 0, 0], self._range),
            budget=torch.full_like(t, self._budget),
            limit=torch.ones_like(pooled[:, :, 0, 0]),
            left=torch.ones_like(pooled[:, :, 0, 0]),
        )
        observation = self._builder.actor(state)
        logits = self.actor(observation.flatten(0, 1)).unflatten(0, positions.shape[:2])

        actions, masks = self._lattice.choose_in_order(
            positions, lambda i, mask: best_actions(logits[:, i], mask)
        )
        return actions, policy_probabilities(logits, masks, 0.0)


def mission_facts(config: Config) -> dict[str, Any]:
    """Return the data needed to fly the mission without this library, in plain types.

    `rows[x][z]` and `cols[y][z]` list the first cell of the footprint, one past the last cell, and
    the first cell of the window, by lattice index and altitude index. Raises ConfigError if
    missions differ in team, budget or radio.
    """
    config = config.one_area()
    if drawn := config.missions.drawn:
        examples = " ".join(f"--set {key}={min(values)}" for key, values in drawn.items())
        raise ConfigError(
            f"{' and '.join(drawn)}: an exported team supports one value; "
            f"set one, for example {examples}"
        )
    lattice, camera = Lattice(config, "cpu"), Camera(config, "cpu")
    grid = torch.cartesian_prod(*map(torch.arange, lattice.shape))
    footprint = camera.footprint(grid.view(*lattice.shape, 3))
    rows = torch.stack((footprint.row0, footprint.row1, footprint.window_row), -1)[:, 0]
    cols = torch.stack((footprint.col0, footprint.col1, footprint.window_col), -1)[0]
    return {
        "agents": config.missions.most_agents,
        "moves": config.missions.episode_length,
        "lattice": list(lattice.shape),
        "spacing": lattice.spacing,
        "altitudes": list(config.geometry.altitudes),
        "offsets": lattice.offsets.tolist(),
        "map": list(camera.shape),
        "cell_size": list(config.geometry.cell_size),
        "window": list(camera.window),
        "rows": rows.tolist(),
        "cols": cols.tolist(),
        "miss": camera.error_rates[:, 0].tolist(),
        "false_alarm": camera.error_rates[:, 1].tolist(),
        "prior": config.mapping.prior,
        "communication_range": _shortest_range(config),
        "channels": [
            *(f"heard_uav_{k}" for k in range(config.network_sizes.heard)),
            *config.observation.actor_channels,
        ],
    }


def _shortest_range(config: Config) -> float:
    """Return the shortest communication range as a finite number [m]."""
    return min(*choices(config.experiment.uav.communication_range), _UNLIMITED_RANGE)
