"""Tree search over the remaining moves of one UAV: many leaves and all missions at once."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.greedy import Flight, Plan, Problem, fly_greedily

SHARPNESS = 4.0
"""Sharpness of the prior: the worst action has exp(−SHARPNESS) times the best one's prior."""
LEAST = 1e-5
"""Minimum difference at which the totals of two flights count as different."""
EXPLORATION = 2.5
"""Weight of the prior relative to the values."""
_DIGITS = 5  # decimals of scores; rounding makes near-equal scores equal


class TreeSearch:
    """Grows a tree of moves where flights are good or rarely tried, and takes the best flight.

    A simulation walks from the root along edges (see `select`) to an untried action and adds a
    node. A greedy flight from the node to the end of the mission gives the node's value. Flights
    are deterministic, so an edge has the value of the best flight through it.

    See `SearchConfig` for `simulations`, `depth` and `leaves`. A small tree grows by fewer leaves
    at once. Simulations that reach no untried action are lost.
    """

    def __init__(
        self, view: LatticeView, simulations: int = 256, depth: int = 16, leaves: int = 16
    ) -> None:
        self._view = view
        self._simulations = simulations
        self._depth = depth
        self._leaves = leaves
        actions, (x, y, _) = view.lattice.num_actions, view.lattice.shape
        self.elements = max((simulations + 2) * x * y, leaves * actions * max(x, y, leaves))

    def over(self, view: LatticeView) -> TreeSearch:
        """Return the search over another view."""
        return TreeSearch(view, self._simulations, self._depth, self._leaves)

    def search(self, problem: Problem) -> Plan:
        """Return the best flight in each mission, and visit shares of the first actions."""
        tree = self.grow(problem)
        return Plan(tree.action, tree.rest, tree.visit_shares())

    def grow(self, problem: Problem) -> Tree:
        """Grow the trees on which `search` is based, one per mission."""
        flight = fly_greedily(self._view, problem)
        depth = problem.horizon.clamp(max=self._depth)
        tree = Tree(self._view, problem, depth, self._simulations, flight)
        first, end = 1, self._simulations + 1
        levels = max(1, min(self._depth, problem.max_horizon))
        while first < end:
            walkers = min(self._leaves, first - 1 + self._view.lattice.num_actions, end - first)
            new = slice(first, first + walkers)
            path, ends = tree.walk(walkers, levels)
            flight = fly_greedily(self._view, tree.add(new, ends))
            tree.back_up(new, path, ends, flight)
            first += walkers
        return tree


class Tree:
    """One tree for each of E missions. Node 0 is the root; the last of the M nodes is a dummy.

    A node stores the entropy that remains on the lattice after its path. Edge a of node m has the
    index m·A + a. A flight's total is the entropy removed on the path to a node and on the greedy
    flight from there. Arguments: `depth`, the maximum depths [E]; `flight`, the roots' flights.
    """

    action: Tensor
    """First action of the best flight, [E]."""
    rest: Tensor
    """Entropy that the best flight leaves around each lattice position, [E, X, Y]."""

    def __init__(
        self, view: LatticeView, problem: Problem, depth: Tensor, simulations: int, flight: Flight
    ) -> None:
        left, nodes = problem.entropy, simulations + 2
        self._view, self._root = view, problem
        self._actions = view.lattice.num_actions
        self._depth = depth.unsqueeze(1)
        self._dummy = (nodes - 1) * self._actions
        self._missions = torch.arange(len(left), device=left.device).unsqueeze(1)
        self._positions = problem.position.unsqueeze(1).repeat(1, nodes, 1)  # [E, M, 3]
        self._levels = depth.new_zeros(len(left), nodes)  # number of moves from the root
        self._left = left.new_zeros(len(left), nodes, *left.shape[1:])
        self._left[:, 0] = left
        self._gain = left.new_zeros(len(left), nodes)  # entropy removed on the path from the root
        self._totals = torch.zeros_like(self._gain)
        self.children = depth.new_zeros(len(left), nodes, self._actions)
        """Node at the end of each edge, [E, M, A]; 0 if there is none."""
        self.visits = left.new_zeros(self.children.shape)
        """Number of walkers that followed each edge, [E, M, A]."""
        self._free = torch.zeros_like(self.visits, dtype=torch.bool)
        self._gains = torch.zeros_like(self.visits)
        self._priors = torch.zeros_like(self.visits)
        self._best = torch.full_like(self.visits, -torch.inf)  # best flight's total, per edge
        self.action, self.rest = flight.first, flight.left
        self._first = flight.first
        self._most = self._least = flight.gain
        self._open(slice(0, 1), flight)
        if problem.prior is not None:
            self._priors[:, 0] = problem.prior

    def visit_shares(self) -> Tensor:
        """Return the share of flights that began with each action, [E, A]."""
        first = self._first.unsqueeze(1)
        visits = self.visits[:, 0].scatter_add(1, first, torch.ones_like(self._gain[:, :1]))
        return visits / visits.sum(1, keepdim=True)

    def walk(self, walkers: int, levels: int) -> tuple[Tensor, Tensor]:
        """Move K walkers of each tree to untried actions, at most `levels` edges from the root.

        Returns the edges of the paths, [E, K, D], and the last edges, [E, K]. Edges of the dummy
        node pad the paths; they also replace the last edge if a walker finds no untried action.
        """
        node = self._levels.new_zeros(len(self._levels), walkers)
        walks = torch.ones_like(node, dtype=torch.bool)
        ends = torch.full_like(node, self._dummy)
        path: list[Tensor] = []
        for _ in range(levels):
            action, walks = self._select(node, walks)
            edge = torch.where(walks, node * self._actions + action, self._dummy)
            path.append(edge)
            child = self.children.flatten(1).gather(1, edge)
            ends = torch.where(walks & (child == 0), edge, ends)
            walks = walks & (child > 0)
            node = torch.where(walks, child, node)
            # On a GPU, `any` would make the host wait.
            if node.device.type == "cpu" and not walks.any():
                break
        return torch.stack(path, -1), ends

    def add(self, nodes: slice, edges: Tensor) -> Problem:
        """Add K nodes at the ends of edges [E, K]; return their search problem for E·K UAVs."""
        at, parents = self._missions, edges // self._actions
        position = self._view.move(self._positions[at, parents], edges % self._actions)
        self._positions[:, nodes] = position
        self._left[:, nodes] = left = self._view.apply_readings(position, self._left[at, parents])
        self._levels[:, nodes] = level = self._levels[at, parents] + 1
        gains = self._gains.flatten(1).gather(1, edges)
        self._gain[:, nodes] = self._gain[at, parents] + gains
        number = torch.arange(nodes.start, nodes.stop, device=edges.device)
        self.children.flatten(1).scatter_(1, edges, number.expand_as(edges))
        self.children[:, -1] = 0  # the dummy node, written by walkers without an untried action
        # A node at the maximum depth, or at the end of the mission, is visited only once.
        self._free.flatten(1).scatter_(1, edges, level < self._depth)
        position, root = position.flatten(0, 1), self._root
        return Problem(
            position,
            mask=self._view.lattice.allowed(position, root.allowed_moves),
            allowed_moves=root.allowed_moves,
            entropy=left.flatten(0, 1),
            horizon=(root.horizon.unsqueeze(1) - level).flatten(),
            max_horizon=root.max_horizon - 1,
        )

    def back_up(self, nodes: slice, path: Tensor, ends: Tensor, flight: Flight) -> None:
        """Store E·K flights that begin at K new nodes, and update the edges of the paths.

        `path` [E, K, D] and `ends` [E, K]: results of `walk`.
        """
        totals, lost = self._open(nodes, flight), ends == self._dummy
        self._least = torch.minimum(self._least, totals.masked_fill(lost, torch.inf).amin(1))
        totals = totals.masked_fill(lost, -torch.inf)
        edges = path.flatten(1)
        values = totals.unsqueeze(-1).expand_as(path).flatten(1)
        self.visits.flatten(1).scatter_add_(1, edges, torch.ones_like(values))
        self._best.flatten(1).scatter_reduce_(1, edges, values, "amax")

        top, best = totals.max(1)
        at = self._missions.squeeze(1)
        better = top > self._most + LEAST
        self._most = torch.where(better, top, self._most)
        self.action = torch.where(better, path[at, best, 0] % self._actions, self.action)
        rest = flight.left.unflatten(0, totals.shape)[at, best]
        self.rest = torch.where(better.view(-1, 1, 1), rest, self.rest)

    def _open(self, nodes: slice, flight: Flight) -> Tensor:
        """Store the results of E·K flights from K nodes; return the flights' totals, [E, K]."""
        totals = self._gain[:, nodes] + flight.gain.view(len(self._levels), -1)
        scores = flight.scores.unflatten(0, totals.shape)
        can_grow = (self._levels[:, nodes] < self._depth).unsqueeze(-1)
        self._totals[:, nodes] = totals
        self._free[:, nodes] = (scores > -torch.inf) & can_grow
        self._gains[:, nodes] = flight.gains.unflatten(0, totals.shape)
        self._priors[:, nodes] = _compute_priors(scores)
        return totals

    def _select(self, node: Tensor, walks: Tensor) -> tuple[Tensor, Tensor]:
        at = self._missions, node
        free, new, visits = self._free[at], self.children[at] == 0, self.visits[at]
        totals = torch.where(visits > 0, self._best[at], self._totals[at].unsqueeze(-1))
        least, most = (bound[:, None, None] for bound in (self._least, self._most))
        values = ((totals - least) / (most - least).clamp(min=LEAST)).clamp(0, 1)
        return select(node, walks, free, new, visits, values, self._priors[at])


def select(
    node: Tensor,
    walks: Tensor,
    free: Tensor,
    new: Tensor,
    visits: Tensor,
    values: Tensor,
    priors: Tensor,
) -> tuple[Tensor, Tensor]:
    """Choose an edge for each walker by PUCT with virtual loss.

    Conceptually, walkers choose in turn. Each choice counts as a visit of value 0 for later
    walkers at the same node, so that walkers spread. A choice lowers only the score of the chosen
    edge. So the r-th walker at a node takes the r-th highest score among the scores of all edges
    after 0, 1, 2, … choices, and all walkers can choose at once.

    `node`: node of each walker, [E, K]. `walks`: whether the walker still moves, [E, K]. The other
    arguments are [E, K, A] for the edges of that node. `free`: whether the edge may be followed.
    `new`: whether the edge leads to no node yet; one walker may follow it. `visits`: number of
    visits. `values`: value of the best flight through the edge, or of the node for new edges,
    0 to 1. `priors`: probabilities. Returns the action of each walker, [E, K], and whether the
    walker has an action, [E, K] bool.
    """
    taken = torch.arange(node.shape[1], device=node.device)  # number of earlier choices
    free, new, before, values, priors = (
        part.unsqueeze(-1) for part in (free, new, visits, values, priors)
    )
    after = before + taken
    value = values * before.clamp(min=1) / after.clamp(min=1)
    total = visits.sum(-1)[..., None, None] + 1
    bonus = EXPLORATION * priors * total.sqrt() / (1 + after)
    free = free & ((taken == 0) | ~new)
    scores = (value + bonus).round(decimals=_DIGITS).masked_fill(~free, -torch.inf).flatten(2)
    ranked = scores.sort(dim=-1, descending=True, stable=True)
    same_node = (node.unsqueeze(2) == node.unsqueeze(1)) & walks.unsqueeze(1)
    rank = same_node.tril(-1).sum(-1, keepdim=True)
    best = ranked.values.gather(2, rank).squeeze(2)
    action = ranked.indices.gather(2, rank).squeeze(2) // len(taken)
    return action, walks & (best > -torch.inf)


def _compute_priors(scores: Tensor) -> Tensor:
    """Return probabilities that fall exponentially from the best score to the worst."""
    high = scores.amax(-1, keepdim=True)
    low = scores.masked_fill(scores == -torch.inf, torch.inf).amin(-1, keepdim=True)
    return (SHARPNESS * (scores - high) / (high - low).clamp(min=LEAST)).softmax(-1)
