"""The planning lattice: positions, actions, and which actions are allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.sectors import Sectors
from marl_framework.mission.state import MissionState

_PLANAR = ((-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0))


def action_offsets(num_actions: int) -> list[tuple[int, int, int]]:
    """Return the lattice steps (dx, dy, dz) of an action set of 4, 6, 9 or 27 actions."""
    if num_actions == 4:
        return list(_PLANAR)
    if num_actions == 6:
        return [(0, 0, 1), *_PLANAR, (0, 0, -1)]
    levels = (0,) if num_actions == 9 else (1, 0, -1)
    return [(dx, dy, dz) for dz, dx, dy in product(levels, (-1, 0, 1), (-1, 0, 1))]


def action_costs(config: Config) -> list[float]:
    """Return the cost of each action and its reading, or raise a ConfigError."""
    constraints = config.experiment.constraints
    cost, spacing = constraints.cost, constraints.spacing
    costs = []
    for dx, dy, dz in action_offsets(constraints.num_actions):
        vertical = dz * (cost.climb if dz > 0 else -cost.descent)
        metres = spacing * (math.hypot(dx, dy) * cost.horizontal + vertical)
        costs.append(metres + cost.reading)
    dearest, least = max(costs), min(config.missions.cost_limits)
    if least < dearest:
        raise ConfigError(
            f"experiment.constraints.cost.limit: {least:g} is below {dearest:g}, the cost of the "
            "most expensive move; raise it, or lower the costs"
        )
    if config.missions.has_cost and dearest == 0:
        raise ConfigError(
            "experiment.constraints.cost: all costs are 0; set horizontal, climb, descent or "
            "reading, or limit: null"
        )
    return costs


class Lattice:
    """Positions at multiples of `spacing` in x and y and at Z altitudes.

    Attributes:
        shape: number of positions (X, Y, Z).
        spacing: distance of neighbours [m].
        altitudes: [Z] float32 [m], lowest first.
        offsets: lattice step of each of `num_actions` actions, [A, 3] int64.
        costs: cost of each action, [A] float64.
        sectors: sectors of the area, one for each UAV.
    """

    def __init__(self, config: Config, device: torch.device | str) -> None:
        self.shape = config.geometry.lattice_shape
        self.spacing = config.experiment.constraints.spacing
        self.altitudes = torch.tensor(config.geometry.altitudes, dtype=torch.float32, device=device)
        steps = action_offsets(config.experiment.constraints.num_actions)
        self.num_actions = len(steps)
        self.offsets = torch.tensor(steps, device=device)
        self.sectors = Sectors(config.missions.most_agents, self.shape[:2], device)
        self._size = torch.tensor(self.shape, device=device)
        self._moves = self.offsets.ne(0).any(-1)  # staying is never allowed
        self._has_cost = config.missions.has_cost
        costs = action_costs(config)
        self.costs = torch.tensor(costs, dtype=torch.float64, device=device)
        # Sums of steps such as 0.1 are not exact: a cost above the rest by less than this is paid.
        self._rounding = 1e-9 * max(config.missions.cost_limits)
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
        """Return (x, y, altitude) [m] of lattice indices [..., 3] int64: [..., 3] float32."""
        planar = positions[..., :2].to(torch.float32) * self.spacing
        return torch.cat((planar, self.altitudes[positions[..., 2]].unsqueeze(-1)), dim=-1)

    def cells(self, positions: Tensor) -> Tensor:
        """Return the flat index x·Y + y, [...] int64, of lattice indices [..., 3]."""
        return positions[..., 0] * self.shape[1] + positions[..., 1]

    def places(self, positions: Tensor) -> Tensor:
        """Return the flat index (x·Y + y)·Z + z, [...] int64, of lattice indices [..., 3]."""
        return self.cells(positions) * self.shape[2] + positions[..., 2]

    def destinations(self, positions: Tensor) -> Tensor:
        """Return the goal of each action, on the lattice or not: [..., A, 3]."""
        return positions.unsqueeze(-2) + self.offsets

    def nearest_destinations(self, positions: Tensor) -> Tensor:
        """Return `destinations`; beyond the lattice its nearest position."""
        return self.destinations(positions).clamp(min=0).minimum(self._size - 1)

    def boundary_mask(self, positions: Tensor) -> Tensor:
        """Return the actions that stay on the lattice: [..., A] bool, True = allowed."""
        goal = self.destinations(positions)
        return ((goal >= 0) & (goal < self._size)).all(-1) & self._moves

    def table(self) -> Tensor:
        """Return the actions that stay on the lattice at each position, [X, Y, Z, A] bool."""
        along = (torch.arange(size, device=self.offsets.device) for size in self.shape)
        return self.boundary_mask(torch.cartesian_prod(*along).view(*self.shape, 3))

    def open_share(self, moves: Tensor) -> Tensor:
        """Return the share of open moves [..., X, Y, Z, A] at each (x, y), [..., X, Y] float32."""
        return moves.sum((-2, -1)).to(torch.float32) / self.table().sum((-2, -1))

    def allowed(self, positions: Tensor, moves: Tensor) -> Tensor:
        """Return the actions that missions allow at positions, [B, …, A] bool.

        Args:
            positions: lattice indices, [B, …, 3]; equally many for each mission, in its order.
            moves: see `MissionState.moves`, [E, X, Y, Z, A].
        """
        x, y, z = positions.unbind(-1)
        mission = torch.arange(len(x), device=x.device) // (len(x) // len(moves))
        return moves[mission.view(-1, *(1,) * (x.dim() - 1)), x, y, z]

    def options(self, state: MissionState) -> Tensor:
        """Return the actions that missions allow their UAVs now, [E, N, A] bool.

        An active UAV has those that it can afford. An inactive one has all of its position, since
        a choice among none would have no probabilities.
        """
        allowed = self.allowed(state.positions, state.moves)
        if self._has_cost:
            paid = self.costs <= state.left.unsqueeze(-1) + self._rounding
            allowed = allowed & (paid | ~state.active.unsqueeze(-1))
        return allowed

    def level_moves(self, left: Tensor) -> Tensor | None:
        """Return the number of level moves that remaining limits allow, at least 1, int64.

        None without limits. Planners rely on these: they plan again after every move.
        """
        if not self._has_cost:
            return None
        return ((left + self._rounding) / self._level_cost).clamp(1, 2**20).long()

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
        """Let the UAVs choose one after the other, each avoiding the earlier ones' cells.

        Args:
            positions: lattice indices, [E, N, 3].
            choose: called as `choose(i, mask)` with the mask [E, A] of UAV i; returns its
                actions [E].
            allowed: allowed actions, [E, N, A] bool; None: those that stay on the lattice.
            active: UAVs that fly, [E, N] bool; the others take no cell. None: all fly.

        Returns:
            Actions [E, N] and their masks, [E, N, A] bool. An action that leads to the (x, y) that
            an earlier UAV has chosen is masked, unless it is the last one left.
        """
        if allowed is None:
            allowed = self.boundary_mask(positions)
        goals = self.cells(self.destinations(positions)).unbind(1)
        chosen: list[tuple[Tensor, Tensor]] = []
        taken: list[Tensor] = []
        for i, (mask, goal) in enumerate(zip(allowed.unbind(1), goals, strict=True)):
            for cell in taken:
                mask = _exclude(mask, goal == cell)
            chosen.append((choose(i, mask), mask))
            cell = goal.gather(1, chosen[i][0].unsqueeze(1))
            if active is not None and self._has_inactive:
                cell = cell.where(active[:, i : i + 1], -1)
            taken.append(cell)
        actions, masks = (torch.stack(each, 1) for each in zip(*chosen, strict=True))
        return actions, masks

    def choose_in_missions(
        self, state: MissionState, choose: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return `choose_in_order` for the UAVs of missions, among their `options`."""
        return self.choose_in_order(state.positions, choose, self.options(state), state.active)

    def start_positions(
        self, keys: Tensor, sizes: Tensor | None = None, moves: Tensor | None = None
    ) -> Tensor:
        """Return start positions [E, N, 3] at the highest altitude.

        Inactive UAVs of smaller teams stand where the first one starts, and can move there.

        Args:
            keys: uniform draws in [0, 1), [E, X·Y]. The N largest select the distinct cells of
                random starts; published starts may share cells.
            sizes: UAVs of each mission, [E] int64; None: N.
            moves: moves that zones leave open, [E, X, Y, Z, A]; random starts have at least one.
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
                cells[:, 0] = (self.shape[0] - 1) // 2 * self.shape[1]  # (25 m, 0) of 50 m
            else:
                cells = keys.topk(self._n_agents, dim=1).indices
            planar = torch.stack((cells // self.shape[1], cells % self.shape[1]), dim=-1)
        if sizes is not None and self._teams_differ:
            flies = torch.arange(self._n_agents, device=planar.device) < sizes.unsqueeze(1)
            planar = planar.where(flies.unsqueeze(-1), planar[:, :1])
        top = torch.full_like(planar[..., :1], self.shape[2] - 1)
        return torch.cat((planar, top), dim=-1)

    def _corner_cells(self, n_agents: int) -> list[tuple[int, int]]:
        """Spread the UAVs over a square grid from 20 % to 80 % of the area, corners first.

        Four UAVs start as in the paper: at 10 m and 40 m of 50 m.
        """
        last = max(1, math.isqrt(n_agents - 1))
        x, y, _ = self.shape
        u, v = ([round((0.2 + 0.6 * k / last) * (n - 1)) for k in range(last + 1)] for n in (x, y))
        corners = [(u[0], v[0]), (u[-1], v[-1]), (u[0], v[-1]), (u[-1], v[0])]
        inner = [k for k in product(range(last + 1), repeat=2) if {*k} - {0, last}]
        cells = [*corners, *((u[i], v[j]) for i, j in inner)][:n_agents]
        if len(set(cells)) < len(cells):
            raise ConfigError(
                f"experiment.missions.start: corners has fewer than {n_agents} distinct cells on a "
                f"lattice of {self.shape[0]} x {self.shape[1]}; use random or fewer n_agents"
            )
        return cells


def _exclude(mask: Tensor, conflict: Tensor) -> Tensor:
    """Mask conflicting actions; where none would remain, keep the allowed one of highest index."""
    remaining = mask & ~conflict
    highest = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    return remaining | (highest & ~remaining.any(-1, keepdim=True))
