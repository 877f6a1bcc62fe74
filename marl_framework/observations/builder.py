"""Stacks maps into the inputs of actor and critic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from marl_framework.config.learning import CENTRED
from marl_framework.config.mission import MOST_AGENTS
from marl_framework.config.model import Config
from marl_framework.mission.area import covered
from marl_framework.mission.camera import Camera, Footprint
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState, Seen
from marl_framework.networks.convolutional import place
from marl_framework.networks.map_predictor import PARTS
from marl_framework.observations import channels
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import MapPrediction
from marl_framework.observations.predictor import load_predictor


class ObservationBuilder:
    """Builds what the networks see from a `MissionState`, for all missions and UAVs at once.

    Args:
        config: says which channels.
        lattice: of missions with this configuration.
        camera: of the same missions.

    Attributes:
        actor_channels: names of the actor's channels, in order.
        critic_channels: names of the critic's channels: the actor's, then its own.
        team_channels: names of the channels of `team`: budget, then the critic's own but for
            the others' actions.
        shape: (X, Y).

    Raises:
        ConfigError: it shows predictions, and the predictor cannot be read.
    """

    def __init__(self, config: Config, lattice: Lattice, camera: Camera) -> None:
        self.actor_channels = config.observation.actor_channels
        self.critic_channels = config.observation.critic_channels
        own = config.observation.critic_only_channels
        self.team_channels = ("budget", *(name for name in own if name != "other_actions"))
        self.shape = lattice.shape[:2]
        self._lattice = lattice
        self._camera = camera
        self._has_inactive = config.missions.has_inactive
        self._has_cost = config.missions.has_cost
        self._max_budget = max(config.missions.budgets)
        self._n_agents = config.missions.most_agents
        self._diagonal = math.hypot(config.environment.x_dim, config.environment.y_dim)
        self._prediction = _prediction(config, lattice)
        self._heard = config.observation.heard_uavs
        ids = torch.arange(self._n_agents, device=lattice.offsets.device)
        others = ids.expand(self._n_agents, -1)
        itself_first = (others == ids.unsqueeze(1)).int()
        self._order = itself_first.argsort(dim=1, descending=True, stable=True)
        self._agent_id = channels.agent_id_map(self._n_agents, self.shape, lattice.offsets.device)

    @property
    def highest(self) -> float:
        """Largest value of any channel, but for rounding: 1 without predictions."""
        return 1.0 if self._prediction is None else max(1.0, self._prediction.highest())

    def actor(self, state: Seen, out: Tensor | None = None) -> Tensor:
        """Return what each UAV knows: [E, N, C_a, X, Y], channels as `actor_channels`.

        With `observation.heard_uavs` there are N planes more, the first ones.

        Args:
            state: the missions.
            out: is written and returned, in its precision; without it maps are float32.
        """
        maps = self._draw(state, self.actor_channels)
        if self._heard:
            maps = torch.cat((self.heard_uavs(state), maps), dim=2)
        return maps if out is None else out.copy_(maps)

    def _draw(self, state: Seen, names: Sequence[str]) -> Tensor:
        """Return some of the actor's channels, [E, N, names, X, Y]; centred ones come last."""
        n = state.positions.shape[1]
        parts: dict[str, Callable[[], Tensor]] = {
            "budget": lambda: channels.budget_map(self._left(state), self.shape),
            "agent_id": lambda: self._agent_ids(state),
            "team_size": lambda: channels.number_map(state.team_size / MOST_AGENTS, n, self.shape),
            "radio_range": lambda: channels.number_map(self._reach(state), n, self.shape),
            "position": lambda: channels.position_map(
                self._lattice.cells(state.positions),
                self._level(state, self._lattice.shape[2] + 1),
                self._heard_now(state),
                state.positions[..., :2],
                self.shape,
            ),
            "entropy": lambda: channels.entropy_map(state.pooled_beliefs),
            "local_entropy": lambda: channels.local_entropy_map(
                state.pooled_readings,
                self._camera.tile_cover(state.positions),
                self._camera.shift[state.positions[..., 2]],
            ),
            "probability": lambda: channels.probability_map(state.pooled_beliefs),
            "footprint": lambda: self._strips(state).heard_map(state.heard),
            "uncertainty": lambda: channels.uncertainty_map(state.pooled_uncertainty),
            "predicted": lambda: self._predicted(state.beliefs),
            "no_fly": lambda: state.open_share.unsqueeze(1).expand(-1, n, -1, -1),
            "sector": lambda: self._lattice.sectors.maps(state.sector, state.team_size),
        }
        absolute = [name for name in names if not name.startswith(CENTRED)]
        centred = [name.removeprefix(CENTRED) for name in names if name.startswith(CENTRED)]
        drawn = {name: parts[name]() for name in dict.fromkeys(absolute + centred)}
        stacks = []
        if absolute:
            stacks.append(torch.stack([drawn[name] for name in absolute], dim=2))
        if centred:
            stacked = torch.stack([drawn[name] for name in centred], dim=2)
            stacks.append(channels.centre_on(stacked, state.positions[..., :2]))
        maps = torch.cat(stacks, dim=2)
        for i, name in enumerate(names):
            if name.endswith("no_fly"):  # turned over last: nothing is open beyond the lattice
                maps[:, :, i] = channels.no_fly_map(maps[:, :, i])
        return maps

    def heard_uavs(self, state: Seen) -> Tensor:
        """Return what each UAV that a UAV hears sees now, itself first: [E, N, N, X, Y].

        A plane is the share of each lattice cell that lies in the footprint, times the altitude
        level (z + 1)/Z; 0 everywhere for a UAV that is not heard.
        """
        footprint = self._camera.footprint(state.positions)
        rows = covered(footprint.row0, footprint.row1, self._camera.shape[0], self.shape[0])
        cols = covered(footprint.col0, footprint.col1, self._camera.shape[1], self.shape[1])
        level = self._level(state, self._lattice.shape[2])
        return channels.heard_planes(rows, cols, level, self._heard_now(state), self._order)

    def critic(self, state: MissionState, actions: Tensor, actor_observation: Tensor) -> Tensor:
        """Return what the critic sees of each UAV: [E, N, C_c, X, Y], as `critic_channels`.

        Args:
            state: the missions, before `actions` are flown.
            actions: what all UAVs chose, [E, N].
            actor_observation: `actor(state)`.
        """
        return torch.cat([actor_observation, self.critic_only(state, actions)], dim=2)

    def critic_only(
        self, state: MissionState, actions: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Return what only the critic sees: [E, N, C_c - C_a, X, Y], the rest of `critic`.

        Args:
            state: the missions, before `actions` are flown.
            actions: what all UAVs chose, [E, N].
            out: as for `actor`.
        """
        own = self.critic_channels[len(self.actor_channels) :]
        maps = self._draw_own(state, actions, own) if own else self._memory(state, 0)
        return maps if out is None else out.copy_(maps)

    def _memory(self, state: Seen, channels: int) -> Tensor:
        """Return memory for maps of each UAV."""
        lead = state.positions.shape[:2]
        return torch.empty(*lead, channels, *self.shape, device=state.positions.device)

    def _draw_own(self, state: MissionState, actions: Tensor, names: Sequence[str]) -> Tensor:
        """Return some of the channels that only the critic sees, [E, N, names, X, Y]."""
        parts = self._team_parts(state)
        parts["other_actions"] = lambda: channels.other_actions_map(
            self._lattice.cells(state.positions),
            actions,
            self._lattice.num_actions,
            self.shape,
            self._active(state),
        )
        return torch.stack([parts[name]().expand(-1, self._n_agents, -1, -1) for name in names], 2)

    def team(self, state: MissionState) -> Tensor:
        """Return what is known of the team as a whole: [E, C_s, X, Y], as `team_channels`."""
        left = self._left(state)
        if self._has_cost:  # of the UAVs that fly, on average
            left = left * state.active / state.active.sum(1, keepdim=True).clamp(min=1)
            left = left.sum(1, keepdim=True)
        budget = channels.budget_map(left[:, :1], self.shape)
        parts = self._team_parts(state)
        return torch.cat([budget, *(parts[name]() for name in self.team_channels[1:])], dim=1)

    def _team_parts(self, state: MissionState) -> dict[str, Callable[[], Tensor]]:
        """Return what draws each map that all UAVs share, [E, 1, X, Y]."""
        return {
            "global_position": lambda: channels.global_position_map(
                self._lattice.cells(state.positions),
                self._level(state, self._lattice.shape[2]),
                self.shape,
                self._active(state),
            ).unsqueeze(1),
            "global_entropy": lambda: channels.entropy_map(state.pooled_global).unsqueeze(1),
            "global_probability": lambda: channels.probability_map(state.pooled_global).unsqueeze(
                1
            ),
            "global_footprint": lambda: self._strips(state).global_map().unsqueeze(1),
            "global_uncertainty": lambda: channels.uncertainty_map(
                state.pooled_global_uncertainty
            ).unsqueeze(1),
            "global_predicted": lambda: self._predicted(state.global_belief).unsqueeze(1),
        }

    def _predicted(self, beliefs: Tensor) -> Tensor:
        assert self._prediction is not None  # the channel is on
        return self._prediction.of(beliefs)

    def _level(self, state: Seen, levels: int) -> Tensor:
        return (state.positions[..., 2] + 1).to(torch.float32) / levels

    def _reach(self, state: Seen) -> Tensor:
        """Return the radio range as a share of the diagonal of the area, at most 1, [E]."""
        return (state.communication_range / self._diagonal).clamp(max=1)

    def _active(self, state: Seen) -> Tensor | None:
        """Return the UAVs that fly, [E, N] bool; None where all do."""
        return state.active if self._has_inactive else None

    def _heard_now(self, state: Seen) -> Tensor:
        """Return who hears whom, but for those who have stopped since, [E, N, N] bool."""
        return state.heard & state.active.unsqueeze(1) if self._has_inactive else state.heard

    def _left(self, state: Seen) -> Tensor:
        """Return the share of moves or of cost that each UAV has left, the smaller one, [E, N]."""
        budget = state.budget if self._has_inactive else self._max_budget
        left = channels.share_left(state.t, budget).unsqueeze(1).expand(-1, self._n_agents)
        return left.minimum((state.left / state.limit).float()) if self._has_cost else left

    def _agent_ids(self, state: Seen) -> Tensor:
        if self._has_inactive:
            return channels.agent_id_map_of_teams(state.team_size, self._n_agents, self.shape)
        return self._agent_id.expand(state.positions.shape[0], -1, -1, -1)

    def _strips(self, state: Seen) -> channels.FootprintStrips:
        boxes = self._camera.team_boxes(state.positions, state.active)
        footprint = Footprint(*boxes.unbind(-1))
        return channels.FootprintStrips(footprint, self._camera.shape, self.shape)


def _prediction(config: Config, lattice: Lattice) -> MapPrediction | None:
    """Return what predicts from beliefs, if a channel shows it."""
    if not config.observation.sees_prediction:
        return None
    # Its weights stay such that learn: autocast keeps the casts of no others.
    network = load_predictor(config.networks.predictor, "networks.predictor")
    network = place(network, config.compute, lattice.offsets.device)
    return MapPrediction(LatticeView(config, lattice, PARTS), network, config.compute.precision)
