"""Tree search over the moves left of one UAV: many leaves of one tree at once, in all missions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.compiled import LatticeLoops
from marl_framework.planners.search.greedy import Flight, fly_greedily
from marl_framework.planners.search.protocol import Plan, Problem
from marl_framework.planners.search.selection import Edges, select

SHARPNESS = 4.0
"""Of the priors: the worst action gets exp(−SHARPNESS) of what the best one gets."""
LEAST = 1e-5
"""Difference of two flights' totals that counts."""


class TreeSearch:
    """Grows a tree of moves where flights are good or little tried, and takes the best flight.

    A simulation walks from the root along edges (see `selection`) to an action not tried there,
    adds a node, and judges it by a greedy flight from there to the end of the mission. What a
    flight removes from the map is certain here, so an edge is worth the best flight through it.

    Args:
        view: the missions' lattice.
        simulations: flights tried for each move.
        depth: moves that the tree looks ahead; greedy flights go on from there.
        leaves: simulations of one tree made at once; those that find no way on are lost. While
            the tree is small, fewer are made.
    """

    def __init__(
        self, view: LatticeView, simulations: int = 256, depth: int = 16, leaves: int = 16
    ) -> None:
        self._view = view
        self._loops = LatticeLoops.of(view)
        self._simulations = simulations
        self._depth = depth
        self._leaves = leaves
        actions, (x, y, _) = view.lattice.num_actions, view.lattice.shape
        self.numbers = max((simulations + 2) * x * y, leaves * actions * max(x, y, leaves))
        """In the largest array of a mission."""

    def search(self, problem: Problem) -> Plan:
        """Return the best flight, and how often each first action was tried; see `PathSearch`."""
        tree = self.grow(problem)
        return Plan(tree.action, tree.rest, tree.visit_shares())

    def grow(self, problem: Problem) -> Tree:
        """Return the trees that `search` takes the best flights of."""
        position, mask, allowed_moves, entropy, horizon, max_horizon, prior = problem
        root = fly_greedily(
            self._view,
            position,
            allowed_moves,
            entropy,
            horizon,
            max_horizon,
            mask,
            self._loops,
        )
        depth = horizon.clamp(max=self._depth)
        tree = Tree(self._view, position, entropy, depth, self._simulations)
        tree.add_root(root, prior)
        for new in self._batches():
            walk = tree.walk(new.stop - new.start, max(1, min(self._depth, max_horizon)))
            tree.add(new, walk.ends)
            flight = fly_greedily(
                self._view,
                tree.positions[:, new].flatten(0, 1),
                allowed_moves,
                tree.left[:, new].flatten(0, 1),
                (horizon.unsqueeze(1) - tree.levels[:, new]).flatten(),
                max_horizon - 1,
                loops=self._loops,
            )
            tree.back_up(new, walk, flight)
        return tree

    def _batches(self) -> Iterator[slice]:
        """Yield the nodes made at once: at most `leaves`, and few while the tree is small."""
        first = 1
        while first <= self._simulations:
            walkers = min(self._leaves, first - 1 + self._view.lattice.num_actions)
            yield slice(first, min(first + walkers, self._simulations + 1))
            first += walkers


class Walk(NamedTuple):
    """Ways of K walkers from the root to actions not tried yet."""

    path: Tensor
    """Edges on the way, [E, K, D], and the edge of no node where it has ended."""
    ends: Tensor
    """The new edge, [E, K]; the edge of no node for walkers that found none."""
    found: Tensor
    """Whether they found one, [E, K] bool."""


class Tree:
    """A tree for each of E missions: node 0 is its root, the last of its M nodes stands for none.

    A node holds what its way leaves on the lattice. Edge a of node m has the flat number m·A + a.
    A total is what a whole flight removes, on the way to a node and greedily from there.

    Args:
        view: the lattice.
        position: where the UAV is at the root, [E, 3].
        left: entropy around each lattice position at the root, [E, X, Y].
        deepest: moves that the tree may look ahead, [E].
        simulations: nodes to come besides the root.
    """

    action: Tensor
    """First action of the best flight, [E]."""
    rest: Tensor
    """What it leaves around each lattice position, [E, X, Y]."""

    def __init__(
        self, view: LatticeView, position: Tensor, left: Tensor, deepest: Tensor, simulations: int
    ) -> None:
        e, nodes, actions = len(left), simulations + 2, view.lattice.num_actions
        self._view = view
        self._actions = actions
        self._deepest = deepest.unsqueeze(1)
        self._nowhere = (nodes - 1) * actions  # edge of no node
        self.positions = position.unsqueeze(1).repeat(1, nodes, 1)
        """[E, M, 3]."""
        self.levels = deepest.new_zeros(e, nodes)
        """Moves from the root, [E, M]."""
        self.left = left.new_zeros(e, nodes, *left.shape[1:])
        """[E, M, X, Y]."""
        self.left[:, 0] = left
        self._gain = left.new_zeros(e, nodes)  # on the way from the root
        self._totals = left.new_zeros(e, nodes)
        self.children = deepest.new_zeros(e, nodes * actions)
        """Node that each edge leads to, [E, M·A]; 0: none yet."""
        self.visits = left.new_zeros(e, nodes * actions)
        """Walkers that followed each edge, [E, M·A]."""
        self._free = torch.zeros_like(self.visits, dtype=torch.bool)
        self._gains = torch.zeros_like(self.visits)
        self._priors = torch.zeros_like(self.visits)
        self._best = torch.full_like(self.visits, -torch.inf)  # total of all flights through it

    def visit_shares(self) -> Tensor:
        """Return how often flights began with each action, shares of all, [E, A].

        These are the walkers', and the greedy flight from the root.
        """
        tried = self.visits[:, : self._actions].clone()
        tried.scatter_add_(1, self._first.unsqueeze(1), torch.ones_like(tried[:, :1]))
        return tried / tried.sum(1, keepdim=True)

    def add_root(self, flight: Flight, prior: Tensor | None = None) -> None:
        """Open the root, given its greedy flight and the prior [E, A] of its actions, if known."""
        self.action, self.rest = flight.first, flight.left
        self._first = flight.first
        self._most = self._least = flight.gain
        self._open(slice(0, 1), flight)
        if prior is not None:
            self._priors[:, : self._actions] = prior

    def walk(self, walkers: int, levels: int) -> Walk:
        """Let walkers of each tree find actions not tried yet.

        Args:
            walkers: K.
            levels: no fewer than the tree may look ahead, at least 1.
        """
        node = self.levels.new_zeros(len(self.levels), walkers)
        walks = torch.ones_like(node, dtype=torch.bool)
        ends = torch.full_like(node, self._nowhere)
        path: list[Tensor] = []
        for _ in range(levels):
            action, walks = select(node, walks, self._edges(node))
            edge = torch.where(walks, node * self._actions + action, self._nowhere)
            path.append(edge)
            child = self.children.gather(1, edge)
            ends = torch.where(walks & (child == 0), edge, ends)
            walks = walks & (child > 0)
            node = torch.where(walks, child, node)
            if node.device.type == "cpu" and not walks.any():  # a GPU would have to be waited for
                break
        return Walk(torch.stack(path, -1), ends, ends < self._nowhere)

    def add(self, nodes: slice, edges: Tensor) -> None:
        """Make K nodes at the ends of edges [E, K]."""
        parents = edges // self._actions
        at = torch.arange(len(edges), device=edges.device).unsqueeze(1)
        position = self._view.move(self.positions[at, parents], edges % self._actions)
        self.positions[:, nodes] = position
        self.left[:, nodes] = self._view.after(position, self.left[at, parents])
        self.levels[:, nodes] = level = self.levels[at, parents] + 1
        self._gain[:, nodes] = self._gain[at, parents] + self._gains.gather(1, edges)
        number = torch.arange(nodes.start, nodes.stop, device=edges.device)
        self.children.scatter_(1, edges, number.expand_as(edges))
        self.children[:, self._nowhere :] = 0  # of walkers that found none
        # A node at the end of the mission, or of the tree, is visited just once.
        self._free.scatter_(1, edges, level < self._deepest)

    def back_up(self, nodes: slice, walk: Walk, flight: Flight) -> None:
        """Open new nodes, and tell the edges on the ways to them what was found.

        Args:
            nodes: K new ones.
            walk: the ways to them.
            flight: greedy flights from there, [E·K].
        """
        totals = self._open(nodes, flight)
        self._least = torch.minimum(self._least, totals.masked_fill(~walk.found, torch.inf).amin(1))
        totals = totals.masked_fill(~walk.found, -torch.inf)
        edges = walk.path.flatten(1)
        values = totals.unsqueeze(-1).expand_as(walk.path).flatten(1)
        self.visits.scatter_add_(1, edges, torch.ones_like(values))
        self._best.scatter_reduce_(1, edges, values, "amax")

        top, best = totals.max(1)
        at = torch.arange(len(best), device=best.device)
        better = top > self._most + LEAST
        self._most = torch.where(better, top, self._most)
        self.action = torch.where(better, walk.path[at, best, 0] % self._actions, self.action)
        rest = flight.left.unflatten(0, totals.shape)[at, best]
        self.rest = torch.where(better.view(-1, 1, 1), rest, self.rest)

    def _open(self, nodes: slice, flight: Flight) -> Tensor:
        """Write what the flights [E·K] from K nodes tell of them; return their totals [E, K]."""
        scores = flight.outlook.scores
        totals = self._gain[:, nodes] + flight.gain.view(len(self.levels), -1)
        grows = self.levels[:, nodes] < self._deepest
        edges = slice(nodes.start * self._actions, nodes.stop * self._actions)
        allowed = (scores > -torch.inf).view(*totals.shape, -1) & grows.unsqueeze(-1)
        self._totals[:, nodes] = totals
        self._free[:, edges] = allowed.flatten(1)
        self._gains[:, edges] = flight.outlook.gains.view(len(totals), -1)
        self._priors[:, edges] = _priors(scores).view(len(totals), -1)
        return totals

    def _edges(self, nodes: Tensor) -> Edges:
        """Return what is known of the edges at nodes [E, K]."""
        first = nodes.unsqueeze(-1) * self._actions
        numbers = first + torch.arange(self._actions, device=nodes.device)

        def at(values: Tensor) -> Tensor:
            return values.gather(1, numbers.flatten(1)).view(numbers.shape)

        visits = at(self.visits)
        promised = self._totals.gather(1, nodes).unsqueeze(-1)
        totals = torch.where(visits > 0, at(self._best), promised)
        least, most = (bound[:, None, None] for bound in (self._least, self._most))
        return Edges(
            free=at(self._free),
            new=at(self.children) == 0,
            visits=visits,
            values=((totals - least) / (most - least).clamp(min=LEAST)).clamp(0, 1),
            priors=at(self._priors),
        )


def _priors(scores: Tensor) -> Tensor:
    """Return shares that fall exponentially from the best score to the worst one."""
    high = scores.amax(-1, keepdim=True)
    low = scores.masked_fill(scores == -torch.inf, torch.inf).amin(-1, keepdim=True)
    return (SHARPNESS * (scores - high) / (high - low).clamp(min=LEAST)).softmax(-1)
