"""The planning lattice: positions, actions, and masks of allowed actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.types import spans
from marl_framework.mission.sectors import Sectors
from marl_framework.mission.state import MissionState

_PLANAR = ((-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0))


def action_offsets(num_actions: int) -> list[tuple[int, int, int]]:
    """Return the lattice step (dx, dy, dz) of each action, for 4, 6, 9 or 27 actions."""
    if num_actions == 4:
        return list(_PLANAR)
    if num_actions == 6:
        return [(0, 0, 1), *_PLANAR, (0, 0, -1)]
    levels = (0,) if num_actions == 9 else (1, 0, -1)
    return [(dx, dy, dz) for dz, dx, dy in product(levels, (-1, 0, 1), (-1, 0, 1))]


def action_costs(config: Config) -> list[float]:
    """Return the cost of each action, including the reading after it.

    Raises ConfigError if the most expensive action exceeds a cost limit, or all costs are 0.
    """
    constraints = config.experiment.constraints
    cost, spacing = constraints.cost, constraints.spacing
    costs = []
    for dx, dy, dz in action_offsets(constraints.num_actions):
        vertical = dz * (cost.climb if dz > 0 else -cost.descent)
        metres = spacing * (math.hypot(dx, dy) * cost.horizontal + vertical)
        costs.append(metres + cost.reading)
    headwind = 1 / (1 - max(high for _, high in spans(cost.wind)))
    horizontal = horizontal_costs(config)
    highest_cost = max(c + (headwind - 1) * h for c, h in zip(costs, horizontal, strict=True))
    lowest_limit = min(config.missions.cost_limits)
    if lowest_limit < highest_cost:
        raise ConfigError(
            f"experiment.constraints.cost.limit: {lowest_limit:g} is below {highest_cost:g}, "
            "the cost of the most expensive move; raise the limit or lower the costs"
        )
    if config.missions.has_cost and highest_cost == 0:
        raise ConfigError(
            "experiment.constraints.cost: all costs are 0; make horizontal, climb, descent "
            "or reading positive, or remove the limit with limit: null"
        )
    return costs


def horizontal_costs(config: Config) -> list[float]:
    """Return the horizontal part of each action's cost, without wind."""
    constraints = config.experiment.constraints
    cost = constraints.spacing * constraints.cost.horizontal
    return [cost * math.hypot(dx, dy) for dx, dy, _ in action_offsets(constraints.num_actions)]


class FieldTables(NamedTuple):
    """The field of a file on the map and on the lattice, on the CPU."""

    cells: Tensor
    """Cells whose centres lie in the field, [R, C] bool."""
    positions: Tensor
    """Positions from which a UAV can move on within the field, [X, Y] bool."""
    moves: Tensor
    """Moves that stay in the field, [X, Y, Z, A] bool."""


class Lattice:
    """Positions at multiples of `spacing` in x and y and at Z altitudes.

    Attributes:
        shape: number of positions (X, Y, Z).
        spacing: distance between neighbouring positions [m].
        altitudes: altitudes [m], lowest first, [Z] float32.
        offsets: lattice step of each of the A = `num_actions` actions, [A, 3] int64.
        costs: cost of each action without wind, [A] float64.
        sectors: division of the area into one sector per UAV.
        tables: field of a file; None if missions map the whole area, or draw a field each.
        field: `tables.positions` on the device, or None.
    """

    def __init__(
        self, config: Config, device: torch.device | str, tables: FieldTables | None = None
    ) -> None:
        self.shape = config.geometry.lattice_shape
        self.spacing = config.experiment.constraints.spacing
        self.altitudes = torch.tensor(config.geometry.altitudes, dtype=torch.float32, device=device)
        steps = action_offsets(config.experiment.constraints.num_actions)
        self.num_actions = len(steps)
        self.offsets = torch.tensor(steps, device=device)
        self.tables, field = tables, None if tables is None else tables.positions
        self.field = None if field is None else field.to(device)
        self.sectors = Sectors(config.missions.most_agents, self.shape[:2], device, field)
        self._size = torch.tensor(self.shape, device=device)
        self._moves = self.offsets.ne(0).any(-1)  # staying is never allowed
        self._has_cost = config.missions.has_cost
        costs = action_costs(config)
        self.costs = torch.tensor(costs, dtype=torch.float64, device=device)
        self._horizontal = torch.tensor(
            horizontal_costs(config), dtype=torch.float64, device=device
        )
        # Sums of floats are inexact: a cost may exceed the remaining budget by this tolerance.
        self._tolerance = 1e-9 * min(config.missions.cost_limits)
        level = [
            c for (*planar, dz), c in zip(steps, costs, strict=True) if dz == 0 and any(planar)
        ]
        self._level_cost = max(min(level), 1e-9)
        self._starts, team_sizes = config.experiment.missions.start, config.missions.team_sizes
        self._n_agents, self._has_inactive = max(team_sizes), config.missions.has_inactive
        self._teams_differ = len(set(team_sizes)) > 1
        if self._starts == "corners":
            corners = torch.zeros(self._n_agents + 1, self._n_agents, 2, dtype=torch.int64)
            for size in team_sizes:
                corners[size, :size] = torch.tensor(self._corner_cells(size))
            self._corners = corners.to(device)

    def metres(self, positions: Tensor) -> Tensor:
        """Convert lattice indices [..., 3] int64 to (x, y, altitude) [m], [..., 3] float32."""
        planar = positions[..., :2].to(torch.float32) * self.spacing
        return torch.cat((planar, self.altitudes[positions[..., 2]].unsqueeze(-1)), dim=-1)

    def cells(self, positions: Tensor) -> Tensor:
        """Convert lattice indices [..., 3] to flat (x, y) indices x·Y + y, [...] int64."""
        return positions[..., 0] * self.shape[1] + positions[..., 1]

    def places(self, positions: Tensor) -> Tensor:
        """Convert lattice indices [..., 3] to flat indices (x·Y + y)·Z + z, [...] int64."""
        return self.cells(positions) * self.shape[2] + positions[..., 2]

    def destinations(self, positions: Tensor) -> Tensor:
        """Return the destination of each action, [..., A, 3]; it may lie off the lattice."""
        return positions.unsqueeze(-2) + self.offsets

    def nearest_destinations(self, positions: Tensor) -> Tensor:
        """Return `destinations`, clamped to the lattice."""
        return self.destinations(positions).clamp(min=0).minimum(self._size - 1)

    def boundary_mask(self, positions: Tensor) -> Tensor:
        """Return whether each action leads to another position on the lattice, [..., A] bool."""
        goal = self.destinations(positions)
        return ((goal >= 0) & (goal < self._size)).all(-1) & self._moves

    def table(self) -> Tensor:
        """Return the `boundary_mask` of all positions, [X, Y, Z, A] bool."""
        along = (torch.arange(size, device=self.offsets.device) for size in self.shape)
        return self.boundary_mask(torch.cartesian_prod(*along).view(*self.shape, 3))

    def open_share(self, moves: Tensor) -> Tensor:
        """Return the fraction of moves on the lattice that are open at each (x, y).

        Args:
            moves: open moves at each position, [..., X, Y, Z, A].

        Returns:
            Fractions [..., X, Y] float32.
        """
        return moves.sum((-2, -1)).to(torch.float32) / self.table().sum((-2, -1))

    def allowed(self, positions: Tensor, moves: Tensor) -> Tensor:
        """Look up the allowed actions at positions, [B, …, A] bool.

        Args:
            positions: lattice indices, [B, …, 3]; rows are grouped by mission, B / E rows each.
            moves: allowed actions at each position, [E, X, Y, Z, A]; see `MissionState.moves`.
        """
        x, y, z = positions.unbind(-1)
        mission = torch.arange(len(x), device=x.device) // (len(x) // len(moves))
        return moves[mission.view(-1, *(1,) * (x.dim() - 1)), x, y, z]

    def options(self, state: MissionState) -> Tensor:
        """Return the actions allowed for each UAV now, [E, N, A] bool.

        Actions that an active UAV cannot afford are not allowed. Costs are ignored for inactive
        UAVs, because without an allowed action there is no policy.
        """
        allowed = self.allowed(state.positions, state.moves)
        if self._has_cost:
            affordable = self.costs_now(state) <= state.left.unsqueeze(-1) + self._tolerance
            allowed = allowed & (affordable | ~state.active.unsqueeze(-1))
        return allowed

    def costs_now(self, state: MissionState) -> Tensor:
        """Return the cost of each action in each mission, [1 or E, 1, A]."""
        return (state.costs if state.costs.numel() else self.costs.unsqueeze(0)).unsqueeze(1)

    def costs_in_wind(self, wind: Tensor, angle: Tensor) -> Tensor:
        """Return the cost of each action at constant airspeed, [E, A].

        A leg at angle a to the wind takes 1 / (w·cos a + √(1 − w²·sin² a)) times as long.

        Args:
            wind: wind speed w as a share of the airspeed, [E, 1] float64.
            angle: direction to which the wind blows, from x to y [rad], [E, 1].
        """
        along = torch.atan2(*self.offsets[:, :2].double().flip(-1).unbind(-1)) - angle
        speed = wind * along.cos() + (1 - (wind * along.sin()).square()).sqrt()
        return self.costs + self._horizontal * (1 / speed - 1)

    def level_moves(self, remaining: Tensor) -> Tensor | None:
        """Return the number of horizontal moves that the remaining budget allows, at least 1.

        None if costs are not limited. Planners use the number as their horizon and replan after
        every move.
        """
        if not self._has_cost:
            return None
        return ((remaining + self._tolerance) / self._level_cost).clamp(1, 2**20).long()

    def move(self, positions: Tensor, actions: Tensor) -> Tensor:
        """Return the positions [E, N, 3] after `actions` [E, N]."""
        return positions + self.offsets[actions]

    def choose_in_order(
        self,
        positions: Tensor,
        choose: Callable[[int, Tensor], Tensor],
        allowed: Tensor | None = None,
        active: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Let the UAVs choose in sequence, each avoiding the cells chosen by earlier UAVs.

        Args:
            positions: lattice indices, [E, N, 3].
            choose: called as `choose(i, mask)` with the mask [E, A] of UAV i; returns the
                actions of UAV i, [E].
            allowed: allowed actions, [E, N, A] bool; None for all that stay on the lattice.
            active: UAVs that fly, [E, N] bool; other UAVs occupy no cell. None if all fly.

        Returns:
            Actions [E, N] and masks, [E, N, A] bool. An action that leads to the (x, y) chosen by
            an earlier UAV is masked, unless no other action remains.
        """
        if allowed is None:
            allowed = self.boundary_mask(positions)
        goals = self.cells(self.destinations(positions)).unbind(1)
        chosen: list[tuple[Tensor, Tensor]] = []
        taken: list[Tensor] = []
        for i, (mask, goal) in enumerate(zip(allowed.unbind(1), goals, strict=True)):
            if taken:
                mask = _exclude(mask, goal, torch.cat(taken, 1))
            chosen.append((choose(i, mask), mask))
            cell = goal.gather(1, chosen[i][0].unsqueeze(1))
            if active is not None and self._has_inactive:
                cell = cell.where(active[:, i : i + 1], -1)
            taken.append(cell)
        actions, masks = (torch.stack(field, 1) for field in zip(*chosen, strict=True))
        return actions, masks

    def choose_in_missions(
        self, state: MissionState, choose: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Call `choose_in_order` with the positions and `options` of the missions' UAVs."""
        return self.choose_in_order(state.positions, choose, self.options(state), state.active)

    def start_positions(
        self, keys: Tensor, sizes: Tensor | None = None, moves: Tensor | None = None
    ) -> Tensor:
        """Return start positions [E, N, 3] at the highest altitude.

        In missions with fewer than N UAVs the other UAVs are inactive and placed at the start of
        the first one.

        Args:
            keys: uniform draws in [0, 1), [E, X·Y]. Random starts use the cells with the N largest
                keys, all distinct; with `start: published` UAVs may share a cell.
            sizes: number of UAVs in each mission, [E] int64; None if all have N.
            moves: open moves, [E, X, Y, Z, A]; random starts have at least one open move.
        """
        if moves is not None:
            keys = keys.masked_fill(~moves[:, :, :, -1].any(-1).flatten(1), -1.0)
        if self._starts == "corners":
            if sizes is None:
                sizes = torch.full_like(keys[:, 0], self._n_agents, dtype=torch.int64)
            planar = self._corners[sizes]
        else:
            if self._starts == "published":
                cells = (keys[:, : self._n_agents].double() * keys.shape[1]).long()
                cells[:, 0] = (self.shape[0] - 1) // 2 * self.shape[1]  # (25 m, 0 m) in 50 m x 50 m
            else:
                cells = keys.topk(self._n_agents, dim=1).indices
            planar = torch.stack((cells // self.shape[1], cells % self.shape[1]), dim=-1)
        if sizes is not None and self._teams_differ:
            flies = torch.arange(self._n_agents, device=planar.device) < sizes.unsqueeze(1)
            planar = planar.where(flies.unsqueeze(-1), planar[:, :1])
        top = torch.full_like(planar[..., :1], self.shape[2] - 1)
        return torch.cat((planar, top), dim=-1)

    def _corner_cells(self, n_agents: int) -> list[tuple[int, int]]:
        """Return start cells on a square grid from 20 % to 80 % of the area, corners first.

        Four UAVs start as in the paper, at 10 m and 40 m in an area of 50 m.
        """
        last = max(1, math.isqrt(n_agents - 1))
        x, y, _ = self.shape
        u, v = ([round((0.2 + 0.6 * k / last) * (n - 1)) for k in range(last + 1)] for n in (x, y))
        corners = [(u[0], v[0]), (u[-1], v[-1]), (u[0], v[-1]), (u[-1], v[0])]
        inner = [k for k in product(range(last + 1), repeat=2) if {*k} - {0, last}]
        cells = [*corners, *((u[i], v[j]) for i, j in inner)][:n_agents]
        if len(set(cells)) < len(cells):
            raise ConfigError(
                f"experiment.missions.start: corners gives fewer than {n_agents} cells on a "
                f"lattice of {self.shape[0]} x {self.shape[1]}; use start=random or lower n_agents"
            )
        return cells


def _exclude(mask: Tensor, goals: Tensor, taken: Tensor) -> Tensor:
    """Mask actions whose `goals` [E, A] are among the J `taken` cells, [E, J].

    If none remains, keep the one whose goal was taken last, and of several the last.
    """
    left = torch.arange(taken.shape[1], 0, -1, device=taken.device)  # highest for the first cell
    conflict = ((goals.unsqueeze(-1) == taken.unsqueeze(1)) * left).amax(-1)  # 0 for free goals
    least = conflict.masked_fill(~mask, len(left) + 1).amin(-1, keepdim=True)
    kept = mask & (conflict == least)
    last = kept & (kept.flip(-1).cumsum(-1).flip(-1) == 1)
    free = least == 0
    return (kept & free) | (last & ~free)  # ONNX Runtime selects no booleans
