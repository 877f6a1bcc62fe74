"""Windows of the lattice around UAVs, for searches with a short horizon."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.problem import Plan, Problem


class Windows:
    """Parts of the lattice that UAVs can change in at most `horizon` moves.

    A window has U × V positions around its UAV and lies on the lattice.

    Attributes:
        sides: number of positions, (U, V).
        is_whole: whether all missions share one window, the whole lattice.
    """

    def __init__(self, view: LatticeView, horizon: int) -> None:
        self._view, self._horizon = view, horizon
        self._shape = view.lattice.shape[:2]
        self._reach = horizon + view.reach
        side = 2 * self._reach + 1
        self.sides = min(side, self._shape[0]), min(side, self._shape[1])
        self.is_whole = self.sides == self._shape and not view.adapts

    def elements(self, search: BeamSearch) -> int:
        """Return the size of the largest array of a search for one mission."""
        if self.is_whole:
            return search.elements
        positions = self.sides[0] * self.sides[1]
        tables = 2 * sum(self.sides) * positions * self._view.lattice.shape[2]
        return max(search.elements * positions // (self._shape[0] * self._shape[1]), tables)

    def starts(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first positions of the windows along x and y, [...], of UAVs at [..., 3]."""
        x, y = (
            (positions[..., axis] - self._reach).clamp(0, self._shape[axis] - self.sides[axis])
            for axis in (0, 1)
        )
        return x, y

    def cut(self, maps: Tensor, positions: Tensor, parts: int = 1) -> Tensor:
        """Return the windows of UAVs at [E, …, 3] in maps [E, …, C, parts·X, parts·Y].

        The result is [E, …, C, parts·U, parts·V].
        """
        if self.is_whole:
            return maps
        rows, cols = self._cells(positions.flatten(0, -2), parts)
        flat = maps.flatten(0, -4)
        at = torch.arange(len(flat), device=maps.device).view(-1, 1, 1, 1)
        channel = torch.arange(flat.shape[1], device=maps.device).view(-1, 1, 1)
        return flat[at, channel, rows.unsqueeze(1), cols.unsqueeze(1)].unflatten(0, maps.shape[:-3])

    def paste(self, windows: Tensor, positions: Tensor) -> Tensor:
        """Return maps [E, X, Y] of 1 with the windows [E, U, V] of UAVs at [E, 3]."""
        if self.is_whole:
            return windows
        maps = windows.new_ones(len(windows), *self._shape)
        rows, cols = self._cells(positions, 1)
        maps[torch.arange(len(maps), device=maps.device).view(-1, 1, 1), rows, cols] = windows
        return maps

    def search(self, search: BeamSearch, problem: Problem) -> Plan:
        """Search for a path; entropies of problem and plan are those of windows, [E, U, V]."""
        horizon = problem.horizon.clamp(max=self._horizon)
        most = min(problem.max_horizon, self._horizon)
        problem = problem._replace(horizon=horizon, max_horizon=most)
        if self.is_whole:
            return search.search(problem)
        x, y = self.starts(problem.position)
        mission = torch.arange(len(horizon), device=x.device)
        rows, cols = self._cells(problem.position, 1)
        moves = problem.allowed_moves[mission.view(-1, 1, 1), rows, cols]  # [E, U, V, Z, A]
        place = problem.position - torch.stack((x - mission * self.sides[0], y, 0 * y), -1)
        local = problem._replace(position=place, allowed_moves=moves.flatten(0, 1).unsqueeze(0))
        view = self._view.windows(x, y, self.sides, problem.caution)
        return search.over(view).search(local)

    def _cells(self, positions: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        """Return the rows [B, U, 1] and columns [B, 1, V] of windows, in cells of 1 / parts."""
        (x, y), (across, along) = self.starts(positions), self.sides
        rows = parts * x.unsqueeze(1) + torch.arange(parts * across, device=x.device)
        cols = parts * y.unsqueeze(1) + torch.arange(parts * along, device=x.device)
        return rows.unsqueeze(2), cols.unsqueeze(1)
