"""Builder of the actor's and critic's input maps from channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels import maps as kernel
from marl_framework.kernels.cells import covered
from marl_framework.kernels.versions import Version
from marl_framework.mission.camera import Camera
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState, Seen
from marl_framework.networks.map_predictor import PARTS
from marl_framework.observations.channels import (
    CHANNELS,
    TEAM_UNIT,
    Channel,
    Extent,
    Scene,
    Turns,
    World,
)
from marl_framework.observations.drawing import centre_on, constant
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import MapPrediction, placed_predictor
from marl_framework.observations.window import Window


class ObservationBuilder:
    """Builder of the networks' inputs from `MissionState`, for all missions and UAVs at once.

    Args:
        config: configuration of the missions and channels.
        lattice: lattice of the missions.
        camera: camera of the missions.
        version: kernel backend.

    Attributes:
        actor_channels: names of the actor's channels, in order.
        critic_channels: names of the critic's channels, the actor's first.
        team_channels: names of the channels in `team`.
        uses_kernels: whether Triton kernels draw the channels that they support.

    Raises:
        ConfigError: the predictor that a channel needs cannot be read.
    """

    def __init__(
        self, config: Config, lattice: Lattice, camera: Camera, version: Version = Version.PLAIN
    ) -> None:
        observation = config.observation
        self.actor_channels = observation.actor_channels
        self.critic_channels = observation.critic_channels
        self._actor = [CHANNELS[name] for name in self.actor_channels]
        self._critic_only = [CHANNELS[name] for name in observation.critic_only_channels]
        self._team = [
            row
            for row in self._critic_only
            if row.turns is not Turns.ACTIONS and not row.is_centred
        ]
        self.team_channels = ("budget", *(row.name for row in self._team))
        self.shape = config.network_sizes.shape
        device, size = lattice.offsets.device, observation.window
        self._window = None if size is None else Window(size, lattice.shape[:2], device)
        self.uses_kernels = version is Version.TRITON and kernel.supports(config)
        self._prediction: MapPrediction | None = None
        if observation.sees_prediction:
            # Weights remain trainable: autocast caches casts only for trainable weights.
            name = config.networks.predictor
            network = placed_predictor(name, "networks.predictor", config, lattice)
            view, precision = LatticeView(config, lattice, PARTS), config.compute.precision
            self._prediction = MapPrediction(view, network, precision)
        predict = None if self._prediction is None else self._prediction.of
        self._world = World(config, lattice, camera, predict)
        fits = self._world.n_agents <= kernel.MOST_FOOTPRINTS
        self._in_kernel = {
            name
            for name, row in CHANNELS.items()
            if self.uses_kernels and row.in_kernel and (fits or not name.endswith("footprint"))
        }
        self._heard = observation.heard_uavs
        ids = self._world.ids
        own_first = (ids.expand(len(ids), -1) == ids.unsqueeze(1)).int()
        self._order = own_first.argsort(dim=1, descending=True, stable=True)

    @property
    def highest(self) -> float:
        """Largest value of any channel, except for rounding; at least 1."""
        highest = 1.0 if self._prediction is None else max(1.0, self._prediction.highest())
        sizes = "team_size" in self.actor_channels
        return max(highest, self._world.n_agents / TEAM_UNIT) if sizes else highest

    def actor(self, state: Seen, out: Tensor | None = None) -> Tensor:
        """Build the actor's inputs, [E, N, C_a, X, Y], with channels as in `actor_channels`.

        With `observation.heard_uavs`, N planes come first.

        Args:
            state: states of the missions.
            out: output tensor, in any precision; None returns new float32 maps.
        """
        planes = [self.heard_uavs(state)] if self._heard else []
        return self._build(Scene(self._world, state), self._actor, planes, out)

    def heard_uavs(self, state: Seen) -> Tensor:
        """Draw one plane per UAV that a UAV hears, its own plane first, [E, N, N, X, Y].

        A plane holds the share of each lattice cell that the footprint covers, times the altitude
        level (z + 1)/Z. Planes of UAVs that are not heard are 0.
        """
        camera, scene = self._world.camera, Scene(self._world, state)
        heard, delays = scene.heard(), self._world.has_delays
        seen = scene.viewers if delays else scene
        footprint = camera.footprint(seen.state.positions)
        x, y = self._world.shape
        rows = covered(footprint.row0, footprint.row1, camera.shape[0], x)
        cols = covered(footprint.col0, footprint.col1, camera.shape[1], y)
        levels = seen.levels(self._world.lattice.shape[2])
        planes = (levels.unsqueeze(-1) * rows.mT).unsqueeze(-1) * cols.mT.unsqueeze(-2)
        planes = planes if self._window is None else self._window.far(planes)
        order = self._order.expand_as(heard)
        if delays:
            planes = planes.unflatten(0, heard.shape[:2])
            planes = planes.take_along_dim(order[..., None, None], dim=2)
        else:
            planes = planes[:, self._order]
        return planes * heard.gather(2, order)[..., None, None]

    def critic(self, state: MissionState, actions: Tensor, actor_observation: Tensor) -> Tensor:
        """Build the critic's inputs, [E, N, C_c, X, Y], with channels as in `critic_channels`.

        Args:
            state: states of the missions, before `actions` are flown.
            actions: actions of all UAVs, [E, N].
            actor_observation: result of `actor(state)`.
        """
        return torch.cat([actor_observation, self.critic_only(state, actions)], dim=2)

    def critic_only(
        self, state: MissionState, actions: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Build the critic's additional channels, [E, N, C_c - C_a, X, Y]; `out` as in `actor`."""
        if not self._critic_only:
            return self._output(state, 0, out)
        return self._build(Scene(self._world, state, actions), self._critic_only, [], out)

    def _build(
        self, scene: Scene, rows: Sequence[Channel], planes: list[Tensor], out: Tensor | None
    ) -> Tensor:
        """Draw channels after `planes`, [E, N, N, X, Y]; `out` as in `actor`."""
        if self._window is not None or not self._slots(rows):
            maps = torch.cat([*planes, *self._draw(scene, rows)], dim=2)
            return maps if out is None else out.copy_(maps)
        out = self._output(scene.state, len(planes) * self._world.n_agents + len(rows), out)
        for plane in planes:
            out[:, :, : plane.shape[2]] = plane
        self._draw_in_kernel(scene, rows, out[:, :, -len(rows) :])
        return out

    def _draw(self, scene: Scene, rows: Sequence[Channel]) -> list[Tensor]:
        """Draw channels in stacks [E, N, …, X, Y]; only windows may be drawn in kernels here."""
        if self._window is None:
            return _draw_stacks(scene, rows)
        lead, device = scene.state.positions.shape[:2], scene.state.positions.device
        if self.uses_kernels:
            drawn, shown = self._window.tables(rows)
            if self._slots(drawn):
                maps = torch.empty(*lead, len(drawn), *self._world.shape, device=device)
                self._draw_in_kernel(scene, drawn, maps)
                windows = torch.empty(*lead, len(rows), *self.shape, device=device)
                kernel.show_in_windows(maps, scene.state.positions, list(shown), windows)
                for k, row in enumerate(rows):
                    if row.extent is Extent.VALUE:
                        windows[:, :, k] = row.draw(scene)[..., :1, :1]
                return [windows]
        return [self._window.show(scene, rows).expand(*lead, -1, -1, -1)]

    def _draw_in_kernel(self, scene: Scene, rows: Sequence[Channel], out: Tensor) -> None:
        """Draw channels into `out`, [E, N, channels, X, Y]: the critic's if there are actions."""
        self._draw_others(scene, rows, out)
        state, world, slots = scene.state, self._world, self._slots(rows)
        camera = world.camera
        if scene.actions is None:
            kernel.draw_actor_maps(
                [getattr(state, name) for name in kernel.ActorInputs._fields],
                [camera.box_table, *camera.cover_tables, camera.shift],
                list(kernel.ActorPlaces(**slots)),
                list(camera.shape),
                world.has_inactive,
                out,
            )
            return
        pooled = state.pooled_global, state.pooled_global_uncertainty
        kernel.draw_critic_maps(
            [state.positions, scene.actions, *pooled, state.active],
            camera.box_table,
            list(kernel.CriticPlaces(**slots)),
            list(camera.shape),
            world.has_inactive,
            world.lattice.num_actions,
            out,
        )

    def team(self, state: MissionState) -> Tensor:
        """Build maps of the whole team, [E, C_s, X, Y], with channels as in `team_channels`."""
        scene = Scene(self._world, state)
        remaining = scene.remaining()
        if self._world.has_cost:  # mean over active UAVs
            remaining = remaining * state.active / state.active.sum(1, keepdim=True).clamp(min=1)
            remaining = remaining.sum(1, keepdim=True)
        maps = [constant(remaining[:, :1], self.shape)]
        if self._window is None:
            maps += [row.draw(scene) for row in self._team]
        elif self._team:
            maps.append(self._window.show(scene, self._team).squeeze(1))
        return torch.cat(maps, dim=1)

    def _slots(self, rows: Sequence[Channel]) -> dict[str, int]:
        """Return the index of each channel that the kernels draw."""
        return {row.name: k for k, row in enumerate(rows) if row.name in self._in_kernel}

    def _draw_others(self, scene: Scene, rows: Sequence[Channel], maps: Tensor) -> None:
        """Write the channels that the kernels do not draw into `maps`."""
        others = {k: row for k, row in enumerate(rows) if row.name not in self._in_kernel}
        if others:
            stacks = _draw_stacks(scene, list(others.values()))
            for k, plane in zip(others, torch.cat(stacks, dim=2).unbind(2), strict=True):
                maps[:, :, k] = plane

    def _output(self, state: Seen, channels: int, out: Tensor | None) -> Tensor:
        """Return `out`, or allocate maps for all UAVs if it is None."""
        if out is not None:
            return out
        lead, device = state.positions.shape[:2], state.positions.device
        return torch.empty(*lead, channels, *self.shape, device=device)


def make_builder(
    environment: MissionEnvironment, config: Config | None = None
) -> ObservationBuilder:
    """Return the fastest builder for an environment; `config` may select other channels."""
    config, version = config or environment.config, environment.fusion.version
    return ObservationBuilder(config, environment.lattice, environment.camera, version)


def _draw_stacks(scene: Scene, rows: Sequence[Channel]) -> list[Tensor]:
    """Draw channels with plain operators in stacks [E, N, …, X, Y], the centred channels last."""
    n_agents = scene.world.n_agents
    absolute = [row for row in rows if not row.is_centred]
    centred = [row for row in rows if row.is_centred]
    draws = dict.fromkeys(row.draw for row in rows)
    drawn = {draw: draw(scene).expand(-1, n_agents, -1, -1) for draw in draws}
    stacks = []
    if absolute:
        stacks.append(torch.stack([drawn[row.draw] for row in absolute], dim=2))
    if centred:
        stacked = torch.stack([drawn[row.draw] for row in centred], dim=2)
        planar, beyond = scene.state.positions[..., :2], [row.beyond for row in centred]
        stacks.append(centre_on(stacked, planar, beyond))
    return stacks
