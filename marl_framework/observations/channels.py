"""Input channels of the networks (Westheider et al. 2023, section IV-A).

To add a channel, write a function that draws it, and add a row to `CHANNELS` and a key to
`ObservationConfig`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.config.learning import CENTRED
from marl_framework.config.model import Config
from marl_framework.kernels.cells import clamp_probability, weighted_entropy
from marl_framework.kernels.cells import entropy as cell_entropy
from marl_framework.kernels.windows import Footprint
from marl_framework.mission.camera import Camera
from marl_framework.mission.lattice import Lattice
from marl_framework.observations.drawing import FootprintStrips, centre_on, constant, paint


class World:
    """Constants that the channels need.

    `predict` maps beliefs [..., R, C] to predictions [..., X, Y]; None if no channel needs it.
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
        self.has_delays = config.missions.has_delays
        self.max_budget = max(config.missions.budgets)
        self.diagonal = math.hypot(config.environment.x_dim, config.environment.y_dim)
        (*_, wide), (*_, high) = camera.sides  # of the highest footprint
        self.seen_share = wide * high / math.prod(camera.shape)
        ids = torch.arange(1, self.n_agents + 1, device=lattice.offsets.device)
        self.ids, self.shares = ids, ids.to(torch.float32) / self.n_agents


class Viewers(NamedTuple):
    """State that the other UAVs are drawn from, with one mission for each viewer."""

    positions: Tensor
    """Known positions of UAVs, [E·N, N, 3] int64."""
    active: Tensor
    """UAVs that fly, [E·N, N] bool."""


class Scene:
    """State to draw: `Seen` for the actor, `MissionState` and actions [E, N] for the critic."""

    def __init__(self, world: World, state: Any, actions: Tensor | None = None) -> None:
        self.world, self.state, self.actions = world, state, actions

    def per_mission(self, values: Tensor) -> Tensor:
        """Return maps of all UAVs filled with one value per mission [E]."""
        return constant(values.unsqueeze(1).expand(-1, self.world.n_agents), self.world.shape)

    def remaining(self) -> Tensor:
        """Return each UAV's remaining share of moves or cost, whichever is smaller, [E, N]."""
        state, world = self.state, self.world
        budget = state.budget if world.has_inactive else world.max_budget
        moves = (budget - state.t).to(torch.float32) / budget
        moves = moves.unsqueeze(1).expand(-1, world.n_agents)
        return moves.minimum((state.left / state.limit).float()) if world.has_cost else moves

    def levels(self, number: int) -> Tensor:
        """Return the altitude level (z + 1) / `number`, [E, N]."""
        return (self.state.positions[..., 2] + 1).to(torch.float32) / number

    @cached_property
    def viewers(self) -> Scene:
        """The scene with a mission for each viewer, E·N, as messages with delay show it."""
        positions, n = self.state.positions, self.world.n_agents
        past = torch.cat((positions.unsqueeze(1), self.state.past_positions), dim=1)
        age = self.state.late.long().where(~self.state.heard, 0)
        seen = past.gather(1, age.unsqueeze(-1).expand(-1, -1, -1, 3)).flatten(0, 1)
        active = self.state.active.repeat_interleave(n, dim=0)
        return Scene(self.world, Viewers(seen, active))

    def heard(self) -> Tensor:
        """Return who hears whom, without UAVs that have stopped since, [E, N, N] bool."""
        heard: Tensor = self.state.heard
        if self.world.has_delays:
            heard = heard | (self.state.late > 0)
        return heard & self.state.active.unsqueeze(1) if self.world.has_inactive else heard

    def hide_inactive(self, order: Tensor) -> Tensor:
        """Return the order for `paint`, [E or 1, M, N], with -1 for inactive UAVs."""
        if not self.world.has_inactive:
            return order
        return order.where(self.state.active.unsqueeze(1), -1)

    def paint(self, values: Tensor, order: Tensor, background: float) -> Tensor:
        """Draw one value per UAV, [E, N], in its cell; see `drawing.paint`."""
        cells = self.world.lattice.cells(self.state.positions)
        return paint(cells, values, order, background, self.world.shape)

    def footprints(self) -> FootprintStrips:
        """Return the footprints of active UAVs."""
        camera = self.world.camera
        boxes = camera.team_boxes(self.state.positions, self.state.active)
        return FootprintStrips(Footprint(*boxes.unbind(-1)), camera.shape, self.world.shape)

    def predict(self, beliefs: Tensor) -> Tensor:
        """Predict entropy maps [..., X, Y] from beliefs [..., R, C]."""
        assert self.world.predict is not None  # set if a channel needs it
        return self.world.predict(beliefs)


def budget(scene: Scene) -> Tensor:
    """Draw the remaining share of moves or cost, whichever is smaller."""
    return constant(scene.remaining(), scene.world.shape)


def agent_id(scene: Scene) -> Tensor:
    """Draw the UAV's number divided by the team size."""
    world = scene.world
    shares = world.shares.expand(scene.state.t.shape[0], -1)
    if world.has_inactive:
        size = scene.state.team_size.unsqueeze(1)
        shares = world.ids.minimum(size) / size
    return constant(shares, world.shape)


TEAM_UNIT = 16  # part of trained teams: another unit would change what they see


def team_size(scene: Scene) -> Tensor:
    """Draw the team size divided by 16."""
    return scene.per_mission(scene.state.team_size / TEAM_UNIT)


def radio_range(scene: Scene) -> Tensor:
    """Draw the radio range divided by the diagonal of the area, at most 1."""
    return scene.per_mission((scene.state.communication_range / scene.world.diagonal).clamp(max=1))


def heard_positions(scene: Scene) -> Tensor:
    """Draw the lattice, and the altitudes of the UAV and of the UAVs it hears in their cells."""
    ids = scene.world.ids
    own_first = ids * (ids.unsqueeze(1) != ids)
    order, number = torch.where(scene.heard(), own_first, -1), scene.world.lattice.shape[2] + 1
    if scene.world.has_delays:
        seen = scene.viewers
        maps = seen.paint(seen.levels(number), order.flatten(0, 1).unsqueeze(1), 1.0)
        return maps.view(*order.shape[:2], *scene.world.shape)
    return scene.paint(scene.levels(number), order, 1.0)


def position(scene: Scene) -> Tensor:
    """Draw the lattice around the UAV, and the altitudes of the UAVs it hears."""
    maps = heard_positions(scene).unsqueeze(2)
    return centre_on(maps, scene.state.positions[..., :2]).squeeze(2)


def entropy(scene: Scene) -> Tensor:
    """Draw the weighted entropy of the UAV's averaged belief."""
    return weighted_entropy(scene.state.pooled_beliefs)


def local_entropy(scene: Scene) -> Tensor:
    """Draw the weighted entropy of the UAV's latest reading, in its footprint."""
    camera, positions = scene.world.camera, scene.state.positions
    up, down = camera.shift[positions[..., 2]][..., None, None, :].unbind(-1)
    cover, read = camera.tile_cover(positions), scene.state.pooled_readings
    return weighted_entropy(0.5 + (up - down) / 2 * cover + (up + down) / 2 * read)


def probability(scene: Scene) -> Tensor:
    """Draw the UAV's averaged belief."""
    return clamp_probability(scene.state.pooled_beliefs)


def footprint(scene: Scene) -> Tensor:
    """Draw the footprint of the UAV, and footprints of the UAVs it hears."""
    if not scene.world.has_delays:
        return scene.footprints().heard_map(scene.state.heard)
    heard, own = scene.heard(), scene.world.ids - 1
    maps = scene.viewers.footprints().heard_map(
        heard.flatten(0, 1).unsqueeze(1), own.repeat(len(heard)).unsqueeze(1)
    )
    return maps.view(*heard.shape[:2], *scene.world.shape)


def uncertainty(scene: Scene) -> Tensor:
    """Draw the averaged p·H(p) of the UAV's belief."""
    return scene.state.pooled_uncertainty.clamp(0, 1)


def predicted(scene: Scene) -> Tensor:
    """Draw the entropy in the ROI, predicted from the UAV's belief."""
    return scene.predict(scene.state.beliefs)


def no_fly(scene: Scene) -> Tensor:
    """Draw the share of moves that zones and obstacles forbid."""
    return 1 - scene.state.open_share.unsqueeze(1).expand(-1, scene.world.n_agents, -1, -1)


def sector(scene: Scene) -> Tensor:
    """Draw the sector of the UAV."""
    return scene.world.lattice.sectors.maps(scene.state.sector, scene.state.team_size)


def area(scene: Scene) -> Tensor:
    """Draw the share of each cell that lies in the area."""
    return scene.per_mission(torch.ones_like(scene.state.t, dtype=torch.float32))


def places(scene: Scene) -> Tensor:
    """Draw the cell of the UAV, 1, and the cells of the UAVs it hears, 0.5."""
    heard, lattice = scene.heard(), scene.world.lattice
    itself = torch.eye(scene.world.n_agents, dtype=torch.bool, device=heard.device)
    values = torch.where(itself, 1.0, 0.5 * heard).unsqueeze(2)  # [E, N, 1, N]
    if scene.world.has_delays:
        cells = lattice.cells(scene.viewers.state.positions).unflatten(0, heard.shape[:2])
    else:
        cells = lattice.cells(scene.state.positions).unsqueeze(1)
    at = torch.arange(lattice.shape[0] * lattice.shape[1], device=heard.device)
    maps = values @ (cells.unsqueeze(-1) == at).to(values.dtype)
    return maps.squeeze(2).clamp(max=1).unflatten(2, scene.world.shape)


def team_moves(scene: Scene) -> Tensor:
    """Draw the ratio m/(m + c): moves m left to the team, undecided positions c."""
    state, world = scene.state, scene.world
    budget = state.budget if world.has_inactive else torch.full_like(state.t, world.max_budget)
    moves = scene.remaining().clamp(min=0) * (budget * state.team_size).unsqueeze(1)
    undecided = cell_entropy(state.pooled_beliefs).sum((-2, -1))
    return constant(moves / (moves + undecided), world.shape)


def team_density(scene: Scene) -> Tensor:
    """Draw the ratio a/(a + 1): share a of the area that the team sees at once from its start."""
    share = scene.state.team_size * scene.world.seen_share
    return scene.per_mission(share / (share + 1))


def radio_reach(scene: Scene) -> Tensor:
    """Draw the ratio r/(r + 5): radio range r in lattice spacings."""
    spacings = scene.state.communication_range / scene.world.lattice.spacing
    return scene.per_mission(1 / (1 + 5 / spacings))  # also for infinite ranges


def global_position(scene: Scene) -> Tensor:
    """Draw the altitudes of all UAVs, in their cells."""
    order = scene.hide_inactive((scene.world.ids - 1).view(1, 1, -1))
    return scene.paint(scene.levels(scene.world.lattice.shape[2]), order, 0.0)


def global_entropy(scene: Scene) -> Tensor:
    """Draw the weighted entropy of the averaged global belief."""
    return weighted_entropy(scene.state.pooled_global).unsqueeze(1)


def global_probability(scene: Scene) -> Tensor:
    """Draw the averaged global belief."""
    return clamp_probability(scene.state.pooled_global).unsqueeze(1)


def global_footprint(scene: Scene) -> Tensor:
    """Draw the footprints of all UAVs."""
    return scene.footprints().global_map().unsqueeze(1)


def other_actions(scene: Scene) -> Tensor:
    """Draw the actions of the other UAVs, in their cells."""
    assert scene.actions is not None
    ids = scene.world.ids - 1
    order = torch.where(ids.unsqueeze(1) == ids, -1, ids).unsqueeze(0)
    values = (scene.actions + 1).to(torch.float32) / scene.world.lattice.num_actions
    return scene.paint(values, scene.hide_inactive(order), 0.0)


def global_uncertainty(scene: Scene) -> Tensor:
    """Draw the averaged p·H(p) of the global belief."""
    return scene.state.pooled_global_uncertainty.clamp(0, 1).unsqueeze(1)


def global_predicted(scene: Scene) -> Tensor:
    """Draw the entropy in the ROI, predicted from the global belief."""
    return scene.predict(scene.state.global_belief).unsqueeze(1)


class Extent(Enum):
    """How a map of the lattice becomes a map of `observation.window`; see `window.Window`."""

    AREA = "means over the area"
    POINTS = "sums over the area"
    FOOTPRINT = "means over the footprint"
    VALUE = "the same value everywhere"


class Turns(Enum):
    """How a channel transforms when the area is flipped or rotated."""

    MAP = "cells move"
    ACTIONS = "cells move, and their values (actions) are transformed, too"


@dataclass(frozen=True)
class Channel:
    """Input channel of the networks."""

    draw: Callable[[Scene], Tensor]
    """Function that draws it, [E, N, X, Y], or [E, 1, X, Y] if all UAVs share the map."""
    in_kernel: bool = True
    """Whether the kernels in `kernels.maps` draw it; else plain operators do."""
    turns: Turns = Turns.MAP
    beyond: float = 0.0
    """Value outside the lattice, used if the channel is centred."""
    is_centred: bool = False
    """Whether the UAV is at the centre of the map."""
    extent: Extent = Extent.AREA
    """What the cells of the map are parts of."""

    @property
    def name(self) -> str:
        """Key in the section `observation`."""
        return CENTRED * self.is_centred + self.draw.__name__


_SEEN = (
    Channel(budget, extent=Extent.VALUE),
    Channel(agent_id, extent=Extent.VALUE),
    Channel(team_size, in_kernel=False, extent=Extent.VALUE),
    Channel(radio_range, in_kernel=False, extent=Extent.VALUE),
    Channel(position),
    Channel(entropy),
    Channel(local_entropy, extent=Extent.FOOTPRINT),
    Channel(probability),
    Channel(footprint),
    Channel(uncertainty),
    Channel(predicted, in_kernel=False),
    Channel(no_fly, beyond=1.0),
    Channel(sector, in_kernel=False),
    Channel(area, in_kernel=False),
    Channel(places, in_kernel=False, extent=Extent.POINTS),
    Channel(team_moves, in_kernel=False, extent=Extent.VALUE),
    Channel(team_density, in_kernel=False, extent=Extent.VALUE),
    Channel(radio_reach, in_kernel=False, extent=Extent.VALUE),
)
_CENTRED = {entropy, probability, footprint, uncertainty, predicted, no_fly, sector, area}
_OF_TEAM = (
    Channel(global_position, extent=Extent.POINTS),
    Channel(global_entropy),
    Channel(global_probability),
    Channel(global_footprint),
    Channel(other_actions, turns=Turns.ACTIONS),
    Channel(global_uncertainty),
    Channel(global_predicted, in_kernel=False),
)
_CENTRED_OF_TEAM = (global_position, global_probability, global_uncertainty, other_actions)
CHANNELS = {
    row.name: row
    for row in (
        *_SEEN,
        *(replace(row, is_centred=True) for row in _SEEN if row.draw in _CENTRED),
        *_OF_TEAM,
        *(
            replace(row, is_centred=True, in_kernel=False)
            for draw in _CENTRED_OF_TEAM
            for row in _OF_TEAM
            if row.draw is draw
        ),
    )
}
"""Channels by name, in the order of the networks' inputs."""
HEARD_POSITIONS = Channel(heard_positions, in_kernel=False)
"""The map that `position` shows, for windows of another size."""
