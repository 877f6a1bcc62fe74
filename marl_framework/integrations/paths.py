"""Fly whole paths that another library plans before the first move."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import cycle, islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import coverage_level
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision

Points = npt.NDArray[np.float64]
Cell = tuple[int, int]


def lattice_path(waypoints: Points, shape: Cell, moves: int) -> list[Cell]:
    """Return a path of `moves` steps along x or y through the cells nearest to waypoints.

    The path is cut after `moves` steps. A shorter path continues back and forth over its own cells.

    Args:
        waypoints: (x, y) in lattice steps, [W, 2]; the first is the start.
        shape: number of lattice positions along x and y, at least two in all.
        moves: number of steps.

    Returns:
        The cells of the start and of each step, `moves` + 1.
    """
    inside = np.rint(waypoints).clip(0, np.array(shape) - 1).astype(int).tolist()
    path: list[Cell] = [(inside[0][0], inside[0][1])]
    for x, y in inside[1:]:
        while path[-1] != (x, y):
            here = path[-1]
            along_x, along_y = x - here[0], y - here[1]
            if abs(along_x) >= abs(along_y):
                path.append((here[0] + (1 if along_x > 0 else -1), here[1]))
            else:
                path.append((here[0], here[1] + (1 if along_y > 0 else -1)))
    if len(path) == 1:  # no move stays in place
        x, y = path[0]
        path.append((abs(x - 1), y) if shape[0] > 1 else (x, abs(y - 1)))
    return list(islice(cycle(path + path[-2:0:-1]), moves + 1))


class PathPlanner(ABC):
    """Flies paths that `plan` returns for the whole team at the first move, ignoring readings.

    The UAVs first change to `experiment.baselines.coverage.altitude`, if they can, and then follow
    the paths on the lattice. A UAV whose next cell is taken flies as near to it as it may. Paths
    are planned on the CPU, mission after mission, and stored for one batch of missions.

    Raises:
        ConfigError: the missions have zones, obstacles or fields, which `plan` does not know.
    """

    name = "paths"

    def __init__(self, environment: MissionEnvironment) -> None:
        config, self._lattice = environment.config, environment.lattice
        if config.missions.has_zones or config.environment.field is not None:
            raise ConfigError(
                f"planner: {self.name}: cannot plan around zones or in fields; remove "
                "experiment.constraints.no_fly_zones and obstacles, and environment.field"
            )
        self._level = coverage_level(config)
        self._longest = config.missions.episode_length
        self._paths = torch.zeros(0)

    @abstractmethod
    def plan(self, starts: Points, moves: int, seed: int) -> Points:
        """Return waypoints [N, W, 2] from `starts` [N, 2], both (x, y) in lattice steps.

        Args:
            starts: first waypoint of each UAV.
            moves: length of each UAV's path, counted along x and y.
            seed: seed of all random numbers.
        """

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        positions = state.positions
        if len(self._paths) != len(positions):
            e, n = positions.shape[:2]
            self._paths = positions.new_zeros(e, n, self._longest + 1, 3)
        for e in state.t.eq(0).nonzero().flatten().tolist():
            self._paths[e] = self._team_paths(state, e, generator)
        target = self._paths[torch.arange(len(positions), device=positions.device), :, state.t + 1]
        ahead = (self._lattice.destinations(positions) - target.unsqueeze(2)).abs().sum(-1)
        far = int(ahead.max()) + 1

        def choose(i: int, mask: Tensor) -> Tensor:
            return ahead[:, i].masked_fill(~mask, far).argmin(-1)

        return Decision(*self._lattice.choose_in_missions(state, choose))

    def _team_paths(self, state: MissionState, e: int, generator: torch.Generator) -> Tensor:
        """Return the positions of each UAV before each move of mission `e`, [N, T + 1, 3].

        UAVs beyond the team stay at their start.
        """
        starts = state.positions[e].cpu()
        seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
        level, turns = self._level, abs(self._level - int(starts[0, 2]))  # all start at the top
        team = starts[: int(state.team_size[e])]
        moves = int(state.budget[e]) + 1 - turns
        levels = torch.linspace(int(starts[0, 2]), level, turns + 1).round().long()
        paths = starts.unsqueeze(1).repeat(1, self._longest + 1, 1)
        paths[:, : turns + 1, 2] = levels[: self._longest + 1]
        paths[:, turns + 1 :, 2] = level
        if moves > 0:
            waypoints = self.plan(team[:, :2].numpy().astype(np.float64), moves, seed)
            for i, points in enumerate(waypoints):
                cells = lattice_path(points, self._lattice.shape[:2], self._longest - turns)
                paths[i, turns:, :2] = torch.tensor(cells)
        return paths.to(state.positions.device)
