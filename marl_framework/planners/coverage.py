"""Coverage: the team mows the area in lanes at one altitude, whatever it sees."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.camera import Camera
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision

_FAR = 2**62


@dataclass(frozen=True)
class _Lanes:
    """One way over the area, cut into a piece for each UAV; pieces G = N, padded to L points."""

    points: Tensor
    """Lattice indices (x, y) along each piece, [G, L, 2] int64."""
    length: Tensor
    """Points of each piece, [G] int64."""
    area: Tensor
    """Cells in view at the points before each point, summed along the piece, [G, L + 1]."""


@dataclass
class _Plan:
    """What each UAV flies, [E, N] int64 each."""

    piece: Tensor
    entry: Tensor
    """Point of the piece it begins at."""
    direction: Tensor
    """+1 or −1 along the piece; turned round once at its end, for what lies behind the entry."""
    progress: Tensor
    """Points reached so far; counts on after the last one, and the piece is flown again."""


class CoveragePlanner:
    """Flies a boustrophedon path over the lattice at `experiment.baselines.coverage.altitude`.

    Lanes lie as far apart as the footprint leaves no gap between them, the first and the last
    one far from the edge where the footprint reaches it. One path along all lanes is cut into a
    piece of equal length for each UAV. At the start each UAV gets a piece and the point to begin
    at, so that as much as possible is seen in the moves that are left; it changes altitude
    first, then flies there. Action sets without up and down stay at the starting altitude.

    The planner remembers its missions: it flies one batch at a time, from the start.

    Args:
        config: the missions.
        lattice: tells which actions are allowed, and where they lead.

    Raises:
        ConfigError: the altitude is not one of the lattice.
    """

    name = "coverage"

    def __init__(self, config: Config, lattice: Lattice) -> None:
        self._lattice = lattice
        self._moves = config.episode_length
        self._n_agents = config.experiment.missions.n_agents
        actions = config.experiment.constraints.num_actions
        self._climbs, self._diagonal = actions in (6, 27), actions in (9, 27)
        self._level = _level(config) if self._climbs else lattice.shape[2] - 1
        camera = Camera(config, "cpu")
        spans = [tuple(t[:, self._level].tolist() for t in camera.spans(axis)) for axis in (0, 1)]
        path = _boustrophedon(*(_lanes(*span) for span in spans))
        widths = [[high - low for low, high in zip(*span, strict=True)] for span in spans]
        self._lanes = _cut(path, widths, self._n_agents, lattice.offsets.device)
        self._plan: _Plan | None = None

    @torch.no_grad()
    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        plan = self._remembered(state)
        target = self._target(plan)
        reached = self._steps(state.positions, target) == 0
        plan.progress += reached
        target = self._target(plan)
        goals = self._lattice.destinations(state.positions)
        number = torch.arange(self._lattice.num_actions, device=goals.device)

        def choose(i: int, mask: Tensor) -> Tensor:
            offset = (goals[:, i] - target[:, i].unsqueeze(1)).abs()
            # The shortest way; of equally short ones first to the altitude, then straight.
            cost = self._length(offset) * 1000 + offset[..., 2] * self._climbs
            cost = (cost * 1000 + offset[..., :2].sum(-1)) * 1000
            return (cost + _shuffled(state.t, i, number)).masked_fill(~mask, _FAR).argmin(-1)

        return Decision(*self._lattice.choose_in_order(state.positions, choose))

    def _remembered(self, state: MissionState) -> _Plan:
        """Return the plans, new ones for missions at their start."""
        new = self._new_plan(state)
        old = self._plan
        if old is not None and old.piece.shape == new.piece.shape:
            start = (state.t == 0).unsqueeze(1)
            fields = zip(vars(new).items(), vars(old).values(), strict=True)
            new = _Plan(**{name: torch.where(start, a, b) for (name, a), b in fields})
        self._plan = new
        return new

    def _target(self, plan: _Plan) -> Tensor:
        """Return the lattice positions [E, N, 3] that the UAVs fly to."""
        length = self._lanes.length[plan.piece]
        step = plan.progress % length
        ahead = torch.where(plan.direction > 0, length - plan.entry, plan.entry + 1)
        on = plan.entry + plan.direction * step
        back = plan.entry - plan.direction * (step - ahead + 1)
        planar = self._lanes.points[plan.piece, torch.where(step < ahead, on, back)]
        return torch.cat((planar, torch.full_like(planar[..., :1], self._level)), dim=-1)

    def _steps(self, start: Tensor, goal: Tensor) -> Tensor:
        """Return the moves between lattice positions [..., 3]."""
        return self._length((goal - start).abs())

    def _length(self, offset: Tensor) -> Tensor:
        offset = offset if self._climbs else offset[..., :2]
        return offset.amax(-1) if self._diagonal else offset.sum(-1)

    def _new_plan(self, state: MissionState) -> _Plan:
        """Plan from where the UAVs are: what each can see of each piece, then who flies what."""
        lanes = self._lanes
        level = torch.full_like(lanes.points[..., :1], self._level)
        points = torch.cat((lanes.points, level), dim=-1)
        travel = self._steps(state.positions[:, :, None, None], points)  # [E, N, G, L]
        left = (self._moves - state.t).view(-1, 1, 1, 1) - travel
        seen = torch.stack([self._seen(points, left, way) for way in (1, -1)], dim=-1)
        best = seen.flatten(-2).max(-1)
        piece = _assign(best.values)
        choice = best.indices.gather(2, piece.unsqueeze(2)).squeeze(2)
        return _Plan(piece, choice // 2, 1 - 2 * (choice % 2), torch.zeros_like(piece))

    def _seen(self, points: Tensor, left: Tensor, way: int) -> Tensor:
        """Return the cells seen from each entry on, in direction `way`: [E, N, G, L].

        Args:
            points: [G, L, 3].
            left: moves left at the entry, negative where it is out of reach, [E, N, G, L].
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


def make(environment: MissionEnvironment) -> CoveragePlanner:
    """Return the planner for an environment."""
    return CoveragePlanner(environment.config, environment.lattice)


def _level(config: Config) -> int:
    altitude = config.experiment.baselines.coverage.altitude
    for level, h in enumerate(config.altitudes):
        if abs(h - altitude) < 1e-6:
            return level
    listed = ", ".join(f"{h:g}" for h in config.altitudes[:10])
    raise ConfigError(
        f"experiment.baselines.coverage.altitude {altitude:g} m is not one of the lattice's "
        f"altitudes ({listed})"
    )


def _lanes(low: list[int], high: list[int]) -> list[int]:
    """Return as few lattice indices as see all cells of an axis that any index sees.

    Args:
        low: first cell in view from each index, not falling.
        high: one past the last.
    """
    lanes = [max(k for k in range(len(low)) if low[k] == low[0])]
    while high[lanes[-1]] < high[-1]:
        reach = [k for k in range(lanes[-1] + 1, len(low)) if low[k] <= high[lanes[-1]]]
        lanes.append(max(reach, default=lanes[-1] + 1))
    return lanes


def _boustrophedon(rows: list[int], cols: list[int]) -> list[tuple[int, int]]:
    """Return lattice points one move apart, to and fro between the outer columns, row by row."""
    path: list[tuple[int, int]] = []
    for number, x in enumerate(rows):
        if path:  # from lane to lane
            path += [(between, path[-1][1]) for between in range(path[-1][0] + 1, x)]
        lane = [(x, y) for y in range(cols[0], cols[-1] + 1)]
        path += lane if number % 2 == 0 else lane[::-1]
    return path


def _cut(
    path: list[tuple[int, int]], widths: list[list[int]], pieces: int, device: torch.device
) -> _Lanes:
    """Cut a path into pieces whose lengths differ by one at most; none is empty."""
    if len(path) < pieces:  # more UAVs than points: some share one, and take turns
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


def _shuffled(t: Tensor, i: int, actions: Tensor) -> Tensor:
    """Return an order of equally good actions that looks random, [E, A] in 0 … 999.

    A UAV that is in the way of another and always steps aside alike could be so for good.
    """
    mixed = t.unsqueeze(1) * 7_919 + actions * 104_729 + i * 1_299_709 + 1
    return (mixed * 2_654_435_761 % 2**32 >> 13) % 1000


def _assign(value: Tensor) -> Tensor:
    """Give each UAV a piece of its own, the most valuable pair first: [E, N] of [E, N, N]."""
    e, n, _ = value.shape
    open_pairs = value.clone()
    pieces = torch.zeros(e, n, dtype=torch.int64, device=value.device)
    ids = torch.arange(n, device=value.device)
    for _ in range(n):
        best = open_pairs.flatten(1).argmax(1, keepdim=True)
        agent, piece = best // n, best % n
        pieces = torch.where(ids == agent, piece, pieces)
        closed = (ids == agent).unsqueeze(2) | (ids == piece).unsqueeze(1)
        open_pairs = open_pairs.masked_fill(closed, -torch.inf)
    return pieces
