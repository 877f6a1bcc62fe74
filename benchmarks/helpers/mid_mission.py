"""Rounds from the middle of missions, flown with the library's environment from a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.helpers.one_at_a_time import Missions
from benchmarks.reference import plain_mission
from benchmarks.reference.plain_mission import Geometry, Map
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import RandomPlanner

MOVES = 6  # out of 15 in the paper's missions; by then the UAVs fly at all altitudes


@dataclass(frozen=True)
class Round:
    """Missions after a move and its messages, before the readings.

    Attributes:
        state: state before the readings.
        bits: random bits for the sensor; see `kernels.windows.read`.
    """

    state: MissionState
    bits: Tensor

    def repeat(self, missions: int, device: torch.device) -> Round:
        """Return copies on a device, repeated until there are `missions` missions."""
        index = torch.arange(missions) % len(self.bits)
        tensors = {name: value[index] for name, value in self.state.tensors()}
        return Round(MissionState(**tensors).to(device), self.bits[index].to(device))


@torch.no_grad()
def fly(config: Config, missions: int) -> Round:
    """Fly fixed random missions to their middle, on the CPU."""
    env = MissionEnvironment(config, missions, "cpu")
    planner = RandomPlanner(env.lattice)
    state = env.reset()
    for _ in range(min(MOVES, config.missions.episode_length - 1) - 1):
        actions = planner.act(state, env.generator).actions
        env.step(state, actions)
    actions = planner.act(state, env.generator).actions
    draws = env.draw_step()
    state.positions.copy_(env.lattice.move(state.positions, actions))
    state.t.add_(1)
    state.heard.copy_(env.radio.hear(state, env.radio.lost(state, draws.communication)))
    return Round(state, draws.sensor)


def as_plain(config: Config, flown: Round) -> Missions:
    """Return copies for the one-at-a-time baseline, after the readings."""
    env = MissionEnvironment(config, len(flown.bits), "cpu")
    camera, state = env.camera, flown.state.clone()
    view = env.fusion.view(state, torch.ones(len(flown.bits), dtype=torch.bool))
    env.fusion.read(state, view, flown.bits)
    env.fusion.fuse_own(state, view, takes_heard=False)
    window = camera.footprint(state.positions)
    likelihood = camera.likelihood(state.readings, state.positions).numpy()
    geometry = Geometry.of(config)
    positions = [[(x, y, z) for x, y, z in team] for team in state.positions.tolist()]

    def reading(e: int, i: int) -> Map:
        seen = plain_mission.footprint(geometry, positions[e][i])
        row, col = int(window.window_row[e, i]), int(window.window_col[e, i])
        cells = likelihood[e, i, seen.row0 - row : seen.row1 - row]
        part: Map = cells[:, seen.col0 - col : seen.col1 - col].copy()
        return part

    team = range(len(positions[0]))
    return Missions(
        geometry=geometry,
        times=state.t.tolist(),
        positions=positions,
        heard=[[[j for j in team if row[j]] for row in rows] for rows in state.heard.tolist()],
        readings=[[reading(e, i) for i in team] for e in range(len(positions))],
        beliefs=[[belief.numpy().copy() for belief in beliefs] for beliefs in state.beliefs],
    )


class Batch:
    """Work of the library between a move and the next decision.

    Beliefs are updated in place and not restored between calls. They only move towards 0 or 1, and
    the operations' cost does not depend on the values.

    Args:
        config: configuration with the mission and the actor's channels.
        flown: round of any number of missions.
    """

    def __init__(self, config: Config, flown: Round) -> None:
        self.state, self._bits = flown.state, flown.bits
        self._env = MissionEnvironment(config, len(self._bits), self._bits.device)
        self._all = torch.ones(len(self._bits), dtype=torch.bool, device=self._bits.device)
        self._builder = ObservationBuilder(config, self._env.lattice, self._env.camera)

    def all_of_it(self) -> Tensor:
        """Take readings, fuse received readings, and return the observation [E, N, C, X, Y]."""
        fusion = self._env.fusion
        view = fusion.view(self.state, self._all)
        fusion.read(self.state, view, self._bits)
        fusion.fuse_own(self.state, view)
        return self._builder.actor(self.state)
