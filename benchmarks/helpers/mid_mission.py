"""Rounds from the middle of missions: flown with the project's environment, from a fixed seed."""

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

MOVES = 6  # of 15 in the paper's missions; by then the UAVs fly at all altitudes


@dataclass(frozen=True)
class Round:
    """Missions whose UAVs have moved and know whom they hear; what follows is timed.

    Attributes:
        state: before the readings are taken.
        bits: the sensor's randomness, see `kernels.windows.read`.
    """

    state: MissionState
    bits: Tensor

    def repeat(self, missions: int, device: torch.device) -> Round:
        """Return as many missions as asked for, these over and over, on a device; copies."""
        index = torch.arange(missions) % len(self.bits)
        tensors = {name: value[index] for name, value in self.state.tensors()}
        return Round(MissionState(**tensors).to(device), self.bits[index].to(device))


@torch.no_grad()
def fly(config: Config, missions: int) -> Round:
    """Fly random missions to their middle, on the CPU, always the same."""
    env = MissionEnvironment(config, missions, "cpu")
    planner = RandomPlanner(env.lattice)
    state = env.reset(env.draw_reset())
    for _ in range(min(MOVES, config.missions.episode_length - 1) - 1):
        actions = planner.act(state, env.generator).actions
        env.step(state, actions, env.draw_step())
    actions = planner.act(state, env.generator).actions
    draws = env.draw_step()
    state.positions.copy_(env.lattice.move(state.positions, actions))
    state.t.add_(1)
    state.heard.copy_(env.hear(state, draws.communication))
    return Round(state, draws.sensor)


def as_plain(config: Config, flown: Round) -> Missions:
    """Return the missions for the one-at-a-time baseline, the readings taken; copies."""
    env = MissionEnvironment(config, len(flown.bits), "cpu")
    camera, state = env.camera, flown.state.clone()
    env.measure(state, flown.bits)
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
    """What the library does between a move and the next decision, ready to be timed.

    Beliefs are updated in place and not put back between calls: they only move towards 0 or 1,
    and no operation takes longer for one value than for another.

    Args:
        config: the mission; all its actor channels are drawn.
        flown: any number of missions.
    """

    def __init__(self, config: Config, flown: Round) -> None:
        self.state, self._bits = flown.state, flown.bits
        self._env = MissionEnvironment(config, len(self._bits), self._bits.device)
        self._builder = ObservationBuilder(config, self._env.lattice, self._env.camera)

    def all_of_it(self) -> Tensor:
        """Take the readings, fuse what was heard, return the observation [E, N, C, X, Y]."""
        self.take_readings()
        self.fuse_heard()
        return self.observe()

    def take_readings(self) -> None:
        """Measure and update the own beliefs; averaged maps follow."""
        self._env.measure(self.state, self._bits)

    def fuse_heard(self) -> None:
        """Fuse what was heard; averaged maps follow."""
        self._env.fuse_heard(self.state)

    def observe(self) -> Tensor:
        """Return the actor's observation [E, N, C, X, Y]."""
        return self._builder.actor(self.state)
