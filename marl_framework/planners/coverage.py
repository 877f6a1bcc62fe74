"""Coverage: the team flies a lawnmower pattern at one altitude and ignores all readings."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.config.model import Config, coverage_level
from marl_framework.kernels import search
from marl_framework.kernels.versions import Version, version_for
from marl_framework.mission.camera import Camera
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import FieldTables, Lattice
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision

_MASKED_COST = 2**62


class _Lanes(NamedTuple):
    """Path over the area, cut into one piece per UAV (G = N), padded to L points each."""

    points: Tensor
    """Lattice indices (x, y, z) along each piece, [G, L, 3] int64."""
    length: Tensor
    """Number of points in each piece, [G] int64."""
    area: Tensor
    """Cumulative number of cells in view over all earlier points, [G, L + 1] float64."""


class _Plan(NamedTuple):
    """Each UAV's part of the path, [E, N] int64 each."""

    piece: Tensor
    """Index of the piece."""
    entry: Tensor
    """Point of the piece where the UAV starts."""
    direction: Tensor
    """+1 or −1 along the piece; at the end, the UAV flies back to the points before the entry."""
    progress: Tensor
    """Number of points reached or skipped; after the last point the UAV repeats the piece."""


class _Team:
    """Plans the flights of teams of `size` UAVs; see `CoveragePlanner`."""

    def __init__(self, config: Config, lattice: Lattice, size: int) -> None:
        self._lattice = lattice
        self._diagonal = config.experiment.constraints.num_actions in (9, 27)
        level, camera = coverage_level(config), Camera(config, "cpu")
        spans = [tuple(t[:, level].tolist() for t in camera.spans(axis)) for axis in (0, 1)]
        path = _trace_path(*(_choose_lanes(*span) for span in spans))
        if lattice.tables is not None:
            path = _fit_into_field(path, spans, lattice.tables)
        widths = [[high - low for low, high in zip(*span, strict=True)] for span in spans]
        points = [(*place, level) for place in path]
        self._lanes = _cut_path(points, widths, size, lattice.offsets.device)
        self._plan: _Plan | None = None

    def targets(self, positions: Tensor, t: Tensor, left: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the lattice positions that the UAVs fly to, [E, size, 3] like `positions`.

        `t`: number of moves made, [E]. `left`: number of moves left, [E, size]. `lengths`: lengths
        of shortest paths to all positions, [E, size, X, Y, Z]; None without zones.
        """
        plan = self._plan = self._current_plan(positions, t, left)
        plan.progress.add_(self.moves((self._target(plan) - positions).abs()) == 0)
        if lengths is not None:
            plan.progress.add_(self._count_unreachable(plan, lengths, left))
        return self._target(plan)

    def moves(self, offset: Tensor) -> Tensor:
        """Return the number of moves for offsets between lattice positions, [..., 3]."""
        return offset.amax(-1) if self._diagonal else offset.sum(-1)

    def _count_unreachable(self, plan: _Plan, lengths: Tensor, left: Tensor) -> Tensor:
        """Count the points before the next reachable one, [E, N]; 0 if none is reachable."""
        reachable = []
        for skipped in range(self._lanes.points.shape[1]):
            ahead = plan._replace(progress=plan.progress + skipped)
            place = self._lattice.places(self._target(ahead)).unsqueeze(2)
            reachable.append(lengths.flatten(2).gather(2, place).squeeze(2) <= left)
        return torch.stack(reachable).int().argmax(0)

    def _current_plan(self, positions: Tensor, t: Tensor, left: Tensor) -> _Plan:
        """Return the stored plans; replace the plans of missions at their first move."""
        start = (t == 0).unsqueeze(1)
        stored = self._plan if self._plan and self._plan.piece.shape == left.shape else None
        # On a GPU, `any` would make the host wait, so new plans are computed at every move.
        if stored is not None and start.device.type == "cpu" and not start.any():
            return stored
        new = self._make_plan(positions, left)
        if stored is None:
            return new
        return _Plan(*(torch.where(start, *pair) for pair in zip(new, stored, strict=True)))

    def _target(self, plan: _Plan) -> Tensor:
        length = self._lanes.length[plan.piece]
        step = plan.progress % length
        ahead = torch.where(plan.direction > 0, length - plan.entry, plan.entry + 1)
        onward = plan.entry + plan.direction * step
        back = plan.entry - plan.direction * (step - ahead + 1)
        return self._lanes.points[plan.piece, torch.where(step < ahead, onward, back)]

    def _make_plan(self, positions: Tensor, left: Tensor) -> _Plan:
        """Plan to observe the most cells from `positions` [E, N, 3] in `left` [E, N] moves."""
        offsets = self._lanes.points - positions[:, :, None, None]  # [E, N, G, L, 3]
        left = left[:, :, None, None] - self.moves(offsets.abs())
        cells = torch.stack([self._count_cells(left, sign) for sign in (1, -1)], dim=-1)
        best = cells.flatten(-2).max(-1)
        piece = _assign_pieces(best.values)
        choice = best.indices.gather(2, piece.unsqueeze(2)).squeeze(2)
        return _Plan(piece, choice // 2, 1 - 2 * (choice % 2), torch.zeros_like(piece))

    def _count_cells(self, left: Tensor, direction: int) -> Tensor:
        """Count the cells observed after each entry in a direction (+1 or −1), [E, N, G, L].

        `left`: number of moves left at each entry, negative for entries out of reach, [E, N, G, L].
        """
        lanes, points = self._lanes, self._lanes.points
        k = torch.arange(points.shape[1], device=points.device)
        last = (lanes.length - 1).unsqueeze(1)
        forward = direction > 0
        ahead = last - k + 1 if forward else k + 1  # points from the entry to the end, [G, L]
        behind = last + 1 - ahead
        end = last.expand_as(ahead) if forward else torch.zeros_like(ahead)
        next_to_entry = (k - direction).clamp(min=0).minimum(last)
        rows = torch.arange(len(points), device=points.device).unsqueeze(1)
        back = self.moves((points[rows, next_to_entry] - points[rows, end]).abs())
        first = (left + 1).clamp(min=0).minimum(ahead)
        rest = (left - ahead - back + 2).clamp(min=0).minimum(behind)
        low, high = (k - rest, k + first) if forward else (k + 1 - first, k + 1 + rest)
        low, high = (bound.clamp(0, points.shape[1]) for bound in (low, high))
        return (lanes.area[rows, high] - lanes.area[rows, low]).masked_fill(k > last, -1)


class CoveragePlanner:
    """Flies a boustrophedon path over the lattice at `experiment.baselines.coverage.altitude`.

    The lanes are as far apart, and as far from the border, as the footprint allows without gaps. In
    the field of a file, positions join the path where the lanes miss ground.
    The path along all lanes is cut into pieces of equal length, one per UAV. At the start each
    UAV gets a piece and an entry point, chosen to maximise the cells observed in the remaining
    moves. The UAV first changes altitude, then flies to the entry. Without vertical actions the
    UAVs stay at the starting altitude. UAVs fly the shortest paths around zones, and skip points
    that they cannot reach in the moves left. The planner stores the plans for one batch of
    missions and must fly that batch from the start.

    Raises:
        ConfigError: the altitude is not a level of the lattice.
    """

    name = "coverage"

    def __init__(self, config: Config, lattice: Lattice) -> None:
        self._lattice = lattice
        self._has_zones, longest = config.missions.has_zones, config.missions.episode_length
        version = version_for(config.compute, lattice.offsets.device)
        self._path_lengths = partial(path_lengths, lattice, most=longest, version=version)
        sizes = set(config.missions.team_sizes)
        self._teams = {size: _Team(config, lattice, size) for size in sizes}

    @torch.no_grad()
    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        target = self._targets(state)
        team = next(iter(self._teams.values()))
        offset = (self._lattice.destinations(state.positions) - target.unsqueeze(2)).abs()
        ahead = team.moves(offset)
        if self._has_zones:
            lengths = self._path_lengths(state.moves, target)
            goals = self._lattice.nearest_destinations(state.positions)
            ahead = lengths.flatten(2).gather(2, self._lattice.places(goals))
        # Minimise the remaining moves, then the altitude error, then the planar distance.
        costs = ahead * 1000 + offset[..., 2]
        costs = (costs * 1000 + offset[..., :2].sum(-1)) * 1000
        costs = costs + _tie_breaker(state.t, *costs.shape[1:])

        def choose(i: int, mask: Tensor) -> Tensor:
            return costs[:, i].masked_fill(~mask, _MASKED_COST).argmin(-1)

        return Decision(*self._lattice.choose_in_missions(state, choose))

    def _targets(self, state: MissionState) -> Tensor:
        targets, affordable = state.positions.clone(), self._lattice.level_moves(state.left)
        moves = (state.budget + 1 - state.t).unsqueeze(1).expand(state.active.shape)
        moves = moves if affordable is None else moves.minimum(affordable)
        for size, team in self._teams.items():
            positions, lengths = state.positions[:, :size], None
            if self._has_zones:
                lengths = self._path_lengths(state.moves, positions)
            goals = team.targets(positions, state.t, moves[:, :size], lengths)
            has_size = (state.team_size == size).view(-1, 1, 1)
            targets[:, :size] = goals.where(has_size, targets[:, :size])
        return targets


def make(environment: MissionEnvironment) -> CoveragePlanner:
    """Create the planner for an environment."""
    return CoveragePlanner(environment.config, environment.lattice)


def _choose_lanes(low: list[int], high: list[int]) -> list[int]:
    """Return the smallest set of lattice indices along one axis that covers all visible cells.

    `low`: first cell in view from each index. `high`: one past the last cell in view.
    """
    lanes = [low.count(low[0]) - 1]
    while high[lanes[-1]] < high[-1]:
        reach = [k for k in range(lanes[-1] + 1, len(low)) if low[k] <= high[lanes[-1]]]
        lanes.append(max(reach, default=lanes[-1] + 1))
    return lanes


def _trace_path(rows: list[int], cols: list[int]) -> list[tuple[int, int]]:
    """Return the lattice points of a path along the rows, alternating in direction."""
    path: list[tuple[int, int]] = []
    for number, x in enumerate(rows):
        if path:  # connect the lanes
            path += [(between, path[-1][1]) for between in range(path[-1][0] + 1, x)]
        lane = [(x, y) for y in range(cols[0], cols[-1] + 1)]
        path += lane if number % 2 == 0 else lane[::-1]
    return path


def _fit_into_field(
    path: list[tuple[int, int]], spans: list[tuple[list[int], ...]], field: FieldTables
) -> list[tuple[int, int]]:
    """Return a path in the field that sees all cells that can be seen from positions of the field.

    Lanes may miss narrow parts of the field. So the position that sees the most unseen cells joins
    the path, where it lengthens it the least, until nothing is missing. `spans`: first cell in view
    from each lattice index and one past the last, along x and along y.
    """
    inside = [(x, y) for x, y in field.positions.nonzero().tolist()]
    path = [(x, y) for x, y in path if field.positions[x, y]] or inside

    def view(place: tuple[int, int]) -> tuple[slice, ...]:
        return tuple(slice(low[k], high[k]) for (low, high), k in zip(spans, place, strict=True))

    unseen = field.cells.clone()
    for place in path:
        unseen[view(place)] = False
    others = inside
    while others := [place for place in others if unseen[view(place)].any()]:
        best = max(others, key=lambda place: int(unseen[view(place)].sum()))
        unseen[view(best)] = False
        detours = [_detour(path[max(k - 1, 0) : k + 1], best) for k in range(len(path) + 1)]
        path.insert(detours.index(min(detours)), best)
    return path


def _detour(ends: list[tuple[int, int]], place: tuple[int, int]) -> float:
    """Return by how much a place lengthens the path between two ends, or beyond one."""
    return sum(math.dist(place, end) for end in ends) - math.dist(ends[0], ends[-1])


def _cut_path(
    path: list[tuple[int, int, int]], widths: list[list[int]], pieces: int, device: torch.device
) -> _Lanes:
    """Cut a path into non-empty pieces whose lengths differ by at most one."""
    if len(path) < pieces:  # more UAVs than points: some UAVs share a point
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


def _tie_breaker(t: Tensor, agents: int, actions: int) -> Tensor:
    """Return pseudo-random costs in 0 … 999, [E, N, A]; constant costs can block two UAVs."""
    agent = torch.arange(agents, device=t.device).unsqueeze(1)
    action = torch.arange(actions, device=t.device)
    hashed = t.view(-1, 1, 1) * 7_919 + action * 104_729 + agent * 1_299_709 + 1
    return (hashed * 2_654_435_761 % 2**32 >> 13) % 1000


def _assign_pieces(value: Tensor) -> Tensor:
    """Assign one piece to each UAV, greedily by `value` [E, N, G]; return piece indices, [E, N]."""
    n, open_pairs = value.shape[1], value
    pieces = torch.zeros_like(value[:, 0], dtype=torch.int64)
    ids = torch.arange(n, device=value.device)
    for _ in range(n):
        best = open_pairs.flatten(1).argmax(1, keepdim=True)
        agent, piece = best // n, best % n
        pieces = torch.where(ids == agent, piece, pieces)
        closed = (ids == agent).unsqueeze(2) | (ids == piece).unsqueeze(1)
        open_pairs = open_pairs.masked_fill(closed, -torch.inf)
    return pieces


def path_lengths(
    lattice: Lattice,
    moves: Tensor,
    origins: Tensor,
    most: int,
    version: Version = Version.PLAIN,
) -> Tensor:
    """Return the number of moves on the shortest path to each position, [E, N, X, Y, Z] int64.

    The length is most + 1 for longer paths and unreachable positions. Every move is reversible, so
    paths back have the same lengths. `moves`: see `MissionState`, [E, X, Y, Z, A]. `origins`:
    lattice indices, [E, N, 3]. There is no version for Triton, which uses plain operators.
    """
    places = torch.arange(moves[0, ..., 0].numel(), device=origins.device)
    goals = (places.unsqueeze(1) + lattice.places(lattice.offsets)).clamp(0, len(places) - 1)
    if version is Version.LOOPS:
        starts = lattice.places(origins)
        lengths = search.path_lengths(starts, moves.flatten(1, 3), goals, most)
        return lengths.unflatten(-1, lattice.shape)
    e, n = origins.shape[:2]
    length = origins.new_full((e, n, len(places)), most + 1)
    length.scatter_(2, lattice.places(origins).unsqueeze(-1), 0)
    open_moves = moves.flatten(1, 3).unsqueeze(1)  # [E, 1, P, A]
    for _ in range(most):
        before = length
        for action in range(lattice.num_actions):
            ahead = before[..., goals[:, action]] + 1
            length = torch.where(open_moves[..., action], torch.minimum(length, ahead), length)
    return length.unflatten(-1, lattice.shape)
