"""Table of the channels that networks see (Westheider et al. 2023, section IV-A).

A new channel is a function that draws it, a row of `CHANNELS`, and a key of `ObservationConfig`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.learning import CENTRED
from marl_framework.config.mission import MOST_AGENTS
from marl_framework.config.model import Config
from marl_framework.kernels.cells import clamp_probability, weighted_entropy
from marl_framework.kernels.windows import Footprint
from marl_framework.mission.camera import Camera
from marl_framework.mission.lattice import Lattice
from marl_framework.observations.drawing import FootprintStrips, centre_on, constant, paint


class World:
    """Constants of missions that channels show.

    `predict` returns predictions [..., X, Y] of beliefs [..., R, C]; None if no channel shows any.
    """

    def __init__(
        self,
        config: Config,
        lattice: Lattice,
        camera: Camera,
        predict: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.lattice, self.camera, self.predict = lattice, camera, predict
        self.shape = lattice.shape[:2]
        self.n_agents = config.missions.most_agents
        self.has_inactive, self.has_cost = config.missions.has_inactive, config.missions.has_cost
        self.max_budget = max(config.missions.budgets)
        self.diagonal = math.hypot(config.environment.x_dim, config.environment.y_dim)
        ids = torch.arange(1, self.n_agents + 1, device=lattice.offsets.device)
        self.ids, self.shares = ids, ids.to(torch.float32) / self.n_agents


class Scene:
    """Missions to draw: `Seen` for the actor; `MissionState` and actions [E, N] for the critic."""

    def __init__(self, world: World, state: Any, actions: Tensor | None = None) -> None:
        self.world, self.state, self.actions = world, state, actions

    def number(self, values: Tensor) -> Tensor:
        """Return a number of each mission, [E], constant over the maps of all UAVs."""
        return constant(values.unsqueeze(1).expand(-1, self.world.n_agents), self.world.shape)

    def left(self) -> Tensor:
        """Return the share of moves or of cost that each UAV has left, the smaller one, [E, N]."""
        state, world = self.state, self.world
        budget = state.budget if world.has_inactive else world.max_budget
        left = (budget - state.t).to(torch.float32) / budget
        left = left.unsqueeze(1).expand(-1, world.n_agents)
        return left.minimum((state.left / state.limit).float()) if world.has_cost else left

    def levels(self, number: int) -> Tensor:
        """Return (z + 1) over a number, [E, N]."""
        return (self.state.positions[..., 2] + 1).to(torch.float32) / number

    def heard(self) -> Tensor:
        """Return who hears whom, except those that have stopped since, [E, N, N] bool."""
        heard: Tensor = self.state.heard
        return heard & self.state.active.unsqueeze(1) if self.world.has_inactive else heard

    def shown(self, order: Tensor) -> Tensor:
        """Return an order for `paint`, [E or 1, M, N], without inactive UAVs."""
        if not self.world.has_inactive:
            return order
        return order.where(self.state.active.unsqueeze(1), -1)

    def paint(self, values: Tensor, order: Tensor, background: float) -> Tensor:
        """Write a value for each UAV, [E, N], at its cell; see `drawing.paint`."""
        cells = self.world.lattice.cells(self.state.positions)
        return paint(cells, values, order, background, self.world.shape)

    def strips(self) -> FootprintStrips:
        """Return the footprints of active UAVs."""
        camera = self.world.camera
        boxes = camera.team_boxes(self.state.positions, self.state.active)
        return FootprintStrips(Footprint(*boxes.unbind(-1)), camera.shape, self.world.shape)

    def predicted(self, beliefs: Tensor) -> Tensor:
        """Return predictions of beliefs, [..., X, Y]."""
        assert self.world.predict is not None  # the channel is on
        return self.world.predict(beliefs)


def budget(scene: Scene) -> Tensor:
    """Draw the share of moves or of cost that is left."""
    return constant(scene.left(), scene.world.shape)


def agent_id(scene: Scene) -> Tensor:
    """Draw the number of the UAV over the size of its team."""
    world = scene.world
    shares = world.shares.expand(scene.state.t.shape[0], -1)
    if world.has_inactive:
        size = scene.state.team_size.unsqueeze(1)
        shares = world.ids.minimum(size) / size
    return constant(shares, world.shape)


def team_size(scene: Scene) -> Tensor:
    """Draw the size of the team over 16."""
    return scene.number(scene.state.team_size / MOST_AGENTS)


def radio_range(scene: Scene) -> Tensor:
    """Draw the radio range over the area's diagonal, at most 1."""
    return scene.number((scene.state.communication_range / scene.world.diagonal).clamp(max=1))


def position(scene: Scene) -> Tensor:
    """Draw the lattice around the UAV, and the altitudes of UAVs that it hears."""
    ids = scene.world.ids
    own_first = ids * (ids.unsqueeze(1) != ids)
    order = torch.where(scene.heard(), own_first, -1)
    maps = scene.paint(scene.levels(scene.world.lattice.shape[2] + 1), order, 1.0)
    return centre_on(maps.unsqueeze(2), scene.state.positions[..., :2]).squeeze(2)


def entropy(scene: Scene) -> Tensor:
    """Draw the weighted entropy of the averaged own belief."""
    return weighted_entropy(scene.state.pooled_beliefs)


def local_entropy(scene: Scene) -> Tensor:
    """Draw the weighted entropy of the own latest reading, in its footprint."""
    camera, positions = scene.world.camera, scene.state.positions
    up, down = camera.shift[positions[..., 2]][..., None, None, :].unbind(-1)
    cover, read = camera.tile_cover(positions), scene.state.pooled_readings
    return weighted_entropy(0.5 + (up - down) / 2 * cover + (up + down) / 2 * read)


def probability(scene: Scene) -> Tensor:
    """Draw the averaged own belief."""
    return clamp_probability(scene.state.pooled_beliefs)


def footprint(scene: Scene) -> Tensor:
    """Draw the own footprint, and footprints of UAVs heard."""
    return scene.strips().heard_map(scene.state.heard)


def uncertainty(scene: Scene) -> Tensor:
    """Draw the averaged p·H(p) of the own belief."""
    return scene.state.pooled_uncertainty.clamp(0, 1)


def predicted(scene: Scene) -> Tensor:
    """Draw the predicted entropy from the own belief."""
    return scene.predicted(scene.state.beliefs)


def no_fly(scene: Scene) -> Tensor:
    """Draw the share of moves that zones and obstacles forbid."""
    return 1 - scene.state.open_share.unsqueeze(1).expand(-1, scene.world.n_agents, -1, -1)


def sector(scene: Scene) -> Tensor:
    """Draw the own part of the area."""
    return scene.world.lattice.sectors.maps(scene.state.sector, scene.state.team_size)


def global_position(scene: Scene) -> Tensor:
    """Draw the altitudes of all UAVs at their cells."""
    order = scene.shown((scene.world.ids - 1).view(1, 1, -1))
    return scene.paint(scene.levels(scene.world.lattice.shape[2]), order, 0.0)


def global_entropy(scene: Scene) -> Tensor:
    """Draw the weighted entropy of the averaged global belief."""
    return weighted_entropy(scene.state.pooled_global).unsqueeze(1)


def global_probability(scene: Scene) -> Tensor:
    """Draw the averaged global belief."""
    return clamp_probability(scene.state.pooled_global).unsqueeze(1)


def global_footprint(scene: Scene) -> Tensor:
    """Draw the footprints of all UAVs."""
    return scene.strips().global_map().unsqueeze(1)


def other_actions(scene: Scene) -> Tensor:
    """Draw the actions of the other UAVs at their cells."""
    assert scene.actions is not None
    ids = scene.world.ids - 1
    order = torch.where(ids.unsqueeze(1) == ids, -1, ids).unsqueeze(0)
    values = (scene.actions + 1).to(torch.float32) / scene.world.lattice.num_actions
    return scene.paint(values, scene.shown(order), 0.0)


def global_uncertainty(scene: Scene) -> Tensor:
    """Draw the averaged p·H(p) of the global belief."""
    return scene.state.pooled_global_uncertainty.clamp(0, 1).unsqueeze(1)


def global_predicted(scene: Scene) -> Tensor:
    """Draw the predicted entropy from the global belief."""
    return scene.predicted(scene.state.global_belief).unsqueeze(1)


class Turns(Enum):
    """How a channel changes when the area is flipped or turned."""

    MAP = "its cells move"
    ACTIONS = "its cells move, and their values are actions, which turn too"


@dataclass(frozen=True)
class Channel:
    """A row of the table."""

    draw: Callable[[Scene], Tensor]
    """Draws it, [E, N, X, Y]; [E, 1, X, Y] if all UAVs share the map."""
    seen_by: str
    """actor (and critic), or critic alone."""
    in_kernel: bool = True
    """Whether the kernels of `kernels.maps` have a slot of its name; else plain operators draw."""
    turns: Turns = Turns.MAP
    beyond: float = 0.0
    """Value beyond the lattice, when centred."""
    is_centred: bool = False
    """Whether the map is shown with the UAV at the centre."""

    @property
    def name(self) -> str:
        """Key in the section `observation`."""
        return CENTRED * self.is_centred + self.draw.__name__

    @property
    def shows(self) -> str:
        """One line for the page on observations."""
        line = str(self.draw.__doc__).removeprefix("Draw the ").rstrip(".")
        return line + ", with the UAV at the centre" * self.is_centred


_SEEN = (
    Channel(budget, "actor"),
    Channel(agent_id, "actor"),
    Channel(team_size, "actor", in_kernel=False),
    Channel(radio_range, "actor", in_kernel=False),
    Channel(position, "actor"),
    Channel(entropy, "actor"),
    Channel(local_entropy, "actor"),
    Channel(probability, "actor"),
    Channel(footprint, "actor"),
    Channel(uncertainty, "actor"),
    Channel(predicted, "actor", in_kernel=False),
    Channel(no_fly, "actor", beyond=1.0),
    Channel(sector, "actor", in_kernel=False),
)
_CENTRED = {entropy, probability, footprint, uncertainty, predicted, no_fly, sector}
CHANNELS = {
    row.name: row
    for row in (
        *_SEEN,
        *(replace(row, is_centred=True) for row in _SEEN if row.draw in _CENTRED),
        Channel(global_position, "critic"),
        Channel(global_entropy, "critic"),
        Channel(global_probability, "critic"),
        Channel(global_footprint, "critic"),
        Channel(other_actions, "critic", turns=Turns.ACTIONS),
        Channel(global_uncertainty, "critic"),
        Channel(global_predicted, "critic", in_kernel=False),
    )
}
"""In the order of the networks' inputs."""
