"""Coverage: the team flies a lawnmower pattern at one altitude, regardless of its readings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from marl_framework.config.model import Config, coverage_level
from marl_framework.mission.camera import Camera
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.planners.paths import path_lengths
from marl_framework.planners.protocol import Decision

_MASKED_COST = 2**62


@dataclass(frozen=True)
class _Lanes:
    """One path over the area, cut into G = N pieces that are padded to L points."""

    points: Tensor
    """Lattice indices (x, y) along each piece, [G, L, 2] int64."""
    length: Tensor
    """Number of points of each piece, [G] int64."""
    area: Tensor
    """Total number of cells in view at all points before each point, [G, L + 1] float64."""


@dataclass
class _Plan:
    """Each UAV's part of the path, [E, N] int64 each."""

    piece: Tensor
    """Index of the piece."""
    entry: Tensor
    """Point of the piece where the UAV starts."""
    direction: Tensor
    """+1 or −1 along the piece; at its end the UAV turns to fly the points before the entry."""
    progress: Tensor
    """Number of points reached; after the last point the UAV repeats the piece."""


class _Team:
    """Plans the flights of teams of one size; `CoveragePlanner` says how.

    Args:
        config: configuration of the missions.
        lattice: determines the allowed actions and their destinations.
        size: UAVs of a team.

    Raises:
        ConfigError: the lattice does not have the altitude.
    """

    def __init__(self, config: Config, lattice: Lattice, size: int) -> None:
        self._lattice = lattice
        actions = config.experiment.constraints.num_actions
        self.climbs, self._diagonal = actions in (6, 27), actions in (9, 27)
        self._level = coverage_level(config)
        camera = Camera(config, "cpu")
        spans = [tuple(t[:, self._level].tolist() for t in camera.spans(axis)) for axis in (0, 1)]
        path = _boustrophedon(*(_lanes(*span) for span in spans))
        widths = [[high - low for low, high in zip(*span, strict=True)] for span in spans]
        self._lanes = _cut(path, widths, size, lattice.offsets.device)
        self._plan: _Plan | None = None

    def targets(
        self, positions: Tensor, t: Tensor, left: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        """Return the lattice positions that the UAVs fly to, [E, size, 3].

        Args:
            positions: of the UAVs, [E, size, 3].
            t: moves made, [E].
            left: moves left to each, [E, size].
            lengths: of the ways from the UAVs to everywhere, [E, size, X, Y, Z]; None where no
                zone is in the way.
        """
        plan = self._current_plan(positions, t, left)
        plan.progress += self._steps(positions, self._target(plan)) == 0
        if lengths is not None:
            self._skip_unreachable(plan, lengths, left)
        return self._target(plan)

    def _skip_unreachable(self, plan: _Plan, lengths: Tensor, left: Tensor) -> None:
        """Let each plan go on to its next point that the UAV reaches in time, if there is one."""
        skips = torch.zeros_like(plan.progress)
        found = torch.zeros_like(skips, dtype=torch.bool)
        for skip in range(self._lanes.points.shape[1]):
            ahead = _Plan(plan.piece, plan.entry, plan.direction, plan.progress + skip)
            place = self._lattice.places(self._target(ahead)).unsqueeze(2)
            near = lengths.flatten(2).gather(2, place).squeeze(2) <= left
            skips = torch.where(near & ~found, skip, skips)
            found |= near
        plan.progress += skips

    def _current_plan(self, positions: Tensor, t: Tensor, left: Tensor) -> _Plan:
        """Return the plans, with new ones for missions at their start."""
        plan, start = self._plan, t == 0
        if plan is None or plan.piece.shape != positions.shape[:2]:
            plan = self._new_plan(positions, left)
        elif start.device.type == "cpu":
            rows = start.nonzero().squeeze(1)
            if len(rows):
                new = self._new_plan(positions[rows], left[rows])
                for name, values in vars(new).items():
                    getattr(plan, name)[rows] = values
        else:  # elsewhere all plan anew at every move: to know which start would be a read-back
            new = self._new_plan(positions, left)
            fields = zip(vars(new).items(), vars(plan).values(), strict=True)
            plan = _Plan(**{name: torch.where(start.unsqueeze(1), a, b) for (name, a), b in fields})
        self._plan = plan
        return plan

    def _target(self, plan: _Plan) -> Tensor:
        """Return the lattice positions that the UAVs fly to, [E, N, 3]."""
        length = self._lanes.length[plan.piece]
        step = plan.progress % length
        ahead = torch.where(plan.direction > 0, length - plan.entry, plan.entry + 1)
        on = plan.entry + plan.direction * step
        back = plan.entry - plan.direction * (step - ahead + 1)
        planar = self._lanes.points[plan.piece, torch.where(step < ahead, on, back)]
        return torch.cat((planar, torch.full_like(planar[..., :1], self._level)), dim=-1)

    def _steps(self, start: Tensor, goal: Tensor) -> Tensor:
        """Return the number of moves between lattice positions [..., 3]."""
        return self.length((goal - start).abs())

    def length(self, offset: Tensor) -> Tensor:
        """Return the number of moves over distances [..., 3] of lattice positions."""
        offset = offset if self.climbs else offset[..., :2]
        return offset.amax(-1) if self._diagonal else offset.sum(-1)

    def _new_plan(self, positions: Tensor, moves: Tensor) -> _Plan:
        """Assign pieces, entries and directions by the cells that each UAV can observe.

        Args:
            positions: of the UAVs, [E, N, 3].
            moves: left to each, [E, N].
        """
        lanes = self._lanes
        level = torch.full_like(lanes.points[..., :1], self._level)
        points = torch.cat((lanes.points, level), dim=-1)
        travel = self._steps(positions[:, :, None, None], points)  # [E, N, G, L]
        left = moves[:, :, None, None] - travel
        cells = torch.stack([self._cells_in_view(points, left, way) for way in (1, -1)], dim=-1)
        best = cells.flatten(-2).max(-1)
        piece = _assign(best.values)
        choice = best.indices.gather(2, piece.unsqueeze(2)).squeeze(2)
        return _Plan(piece, choice // 2, 1 - 2 * (choice % 2), torch.zeros_like(piece))

    def _cells_in_view(self, points: Tensor, left: Tensor, way: int) -> Tensor:
        """Return the number of cells observed from each entry in direction `way`, [E, N, G, L].

        Args:
            points: lattice positions along the pieces, [G, L, 3].
            left: moves left at each entry, negative if it is out of reach, [E, N, G, L].
            way: +1 or −1.
        """
        lanes = self._lanes
        k = torch.arange(points.shape[1], device=points.device)
        last = (lanes.length - 1).unsqueeze(1)
        ahead = last - k + 1 if way > 0 else k + 1  # points from the entry to the end, [G, L]
        behind = last + 1 - ahead
        end = last.expand_as(ahead) if way > 0 else torch.zeros_like(ahead)
        next_to_entry = (k - way).clamp(min=0).minimum(last)
        rows = torch.arange(len(points), device=points.device).unsqueeze(1)
        back = self._steps(points[rows, end], points[rows, next_to_entry])
        first = (left + 1).clamp(min=0).minimum(ahead)
        rest = (left - ahead - back + 2).clamp(min=0).minimum(behind)
        if way > 0:
            low, high = k - rest, k + first
        else:
            low, high = k + 1 - first, k + 1 + rest
        bounds = [b.clamp(0, points.shape[1]) for b in (low, high)]
        total = lanes.area[rows, bounds[1]] - lanes.area[rows, bounds[0]]
        return total.masked_fill(k > last, -1)


class CoveragePlanner:
    """Flies a boustrophedon path over the lattice at `experiment.baselines.coverage.altitude`.

    The lanes are as far apart, and as far from the border, as the footprint allows without gaps.
    The path along all lanes is cut into pieces of equal length, one per UAV. At the start each
    UAV gets a piece and an entry point, chosen to maximise the cells observed in the remaining
    moves; it first changes altitude, then flies to the entry. Without vertical actions the UAVs
    stay at the starting altitude. Where there are zones, the UAVs fly the shortest ways around
    them, and skip points that they cannot reach in the moves left.

    The planner stores the plans of one batch of missions, which it must fly from the start.

    Args:
        config: configuration of the missions.
        lattice: determines the allowed actions and their destinations.

    Raises:
        ConfigError: the lattice does not have the altitude.
    """

    name = "coverage"

    def __init__(self, config: Config, lattice: Lattice) -> None:
        self._lattice = lattice
        self._has_zones, self._longest = config.missions.has_zones, config.missions.episode_length
        self._teams = {
            size: _Team(config, lattice, size) for size in set(config.missions.team_sizes)
        }

    @torch.no_grad()
    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        target = self._targets(state)
        lengths = self._lengths_to(target, state) if self._has_zones else None
        team = next(iter(self._teams.values()))
        goals = self._lattice.destinations(state.positions)
        actions = torch.arange(self._lattice.num_actions, device=goals.device)

        def choose(i: int, mask: Tensor) -> Tensor:
            offset = (goals[:, i] - target[:, i].unsqueeze(1)).abs()
            # Minimise the remaining moves, then the altitude error, then the planar distance.
            ahead = team.length(offset) if lengths is None else lengths[:, i]
            cost = ahead * 1000 + offset[..., 2] * team.climbs
            cost = (cost * 1000 + offset[..., :2].sum(-1)) * 1000
            cost = cost + _tie_breaker(state.t, i, actions)
            return cost.masked_fill(~mask, _MASKED_COST).argmin(-1)

        return Decision(*self._lattice.choose_in_missions(state, choose))

    def _moves_left(self, state: MissionState) -> Tensor:
        """Return the moves that each UAV has left, [E, N]."""
        moves = (state.budget + 1 - state.t).unsqueeze(1).expand(state.active.shape)
        paid = self._lattice.level_moves(state.left)
        return moves if paid is None else moves.minimum(paid)

    def _lengths_to(self, target: Tensor, state: MissionState) -> Tensor:
        """Return the moves to targets [E, N, 3] from where each action leads, [E, N, A]."""
        lengths = path_lengths(self._lattice, state.moves, target, self._longest)
        goals = self._lattice.nearest_destinations(state.positions)
        return lengths.flatten(2).gather(2, self._lattice.places(goals))

    def _targets(self, state: MissionState) -> Tensor:
        """Return the lattice positions that the UAVs fly to, [E, N, 3]."""
        targets, moves = state.positions, self._moves_left(state)
        for size, team in self._teams.items():
            positions, left = state.positions[:, :size], moves[:, :size]
            lengths = None
            if self._has_zones:
                lengths = path_lengths(self._lattice, state.moves, positions, self._longest)
            found = team.targets(positions, state.t, left, lengths)
            found = torch.cat((found, state.positions[:, size:]), dim=1)
            targets = found.where((state.team_size == size).view(-1, 1, 1), targets)
        return targets


def make(environment: MissionEnvironment) -> CoveragePlanner:
    """Create the planner for an environment."""
    return CoveragePlanner(environment.config, environment.lattice)


def _lanes(low: list[int], high: list[int]) -> list[int]:
    """Return the fewest lattice indices that cover all cells in view from any index of an axis.

    Args:
        low: first cell in view from each index, non-decreasing.
        high: one past the last cell in view.
    """
    lanes = [max(k for k in range(len(low)) if low[k] == low[0])]
    while high[lanes[-1]] < high[-1]:
        reach = [k for k in range(lanes[-1] + 1, len(low)) if low[k] <= high[lanes[-1]]]
        lanes.append(max(reach, default=lanes[-1] + 1))
    return lanes


def _boustrophedon(rows: list[int], cols: list[int]) -> list[tuple[int, int]]:
    """Return adjacent lattice points along the rows, back and forth between the outer columns."""
    path: list[tuple[int, int]] = []
    for number, x in enumerate(rows):
        if path:  # connect the lanes
            path += [(between, path[-1][1]) for between in range(path[-1][0] + 1, x)]
        lane = [(x, y) for y in range(cols[0], cols[-1] + 1)]
        path += lane if number % 2 == 0 else lane[::-1]
    return path


def _cut(
    path: list[tuple[int, int]], widths: list[list[int]], pieces: int, device: torch.device
) -> _Lanes:
    """Cut a path into non-empty pieces whose lengths differ by at most one."""
    if len(path) < pieces:  # more UAVs than points: some share a point
        path = [path[k % len(path)] for k in range(pieces)]
    cuts = [len(path) * g // pieces for g in range(pieces + 1)]
    parts = [path[a:b] for a, b in pairwise(cuts)]
    longest = max(len(part) for part in parts)
    points = torch.tensor([part + part[-1:] * (longest - len(part)) for part in parts])
    width_x, width_y = (torch.tensor(width, dtype=torch.float64) for width in widths)
    area = width_x[points[..., 0]] * width_y[points[..., 1]]
    total = torch.cat((torch.zeros(pieces, 1, dtype=torch.float64), area.cumsum(1)), dim=1)
    length = torch.tensor([len(part) for part in parts])
    return _Lanes(points.to(device), length.to(device), total.to(device))


def _tie_breaker(t: Tensor, i: int, actions: Tensor) -> Tensor:
    """Return a pseudo-random cost of each action, [E, A] in 0 … 999.

    Fixed costs could make two UAVs block each other forever.
    """
    hashed = t.unsqueeze(1) * 7_919 + actions * 104_729 + i * 1_299_709 + 1
    return (hashed * 2_654_435_761 % 2**32 >> 13) % 1000


def _assign(value: Tensor) -> Tensor:
    """Assign each UAV its own piece greedily by value [E, N, N]; return the pieces, [E, N]."""
    e, n, _ = value.shape
    open_pairs = value
    pieces = torch.zeros(e, n, dtype=torch.int64, device=value.device)
    ids = torch.arange(n, device=value.device)
    for _ in range(n):
        best = open_pairs.flatten(1).argmax(1, keepdim=True)
        agent, piece = best // n, best % n
        pieces = torch.where(ids == agent, piece, pieces)
        closed = (ids == agent).unsqueeze(2) | (ids == piece).unsqueeze(1)
        open_pairs = open_pairs.masked_fill(closed, -torch.inf)
    return pieces
