"""Plain tree search: one mission and one walker at a time, with numpy.

It implements `marl_framework.planners.search.tree` in the most literal way, as an independent
reference for the batched search and a baseline for its speed. Maps are float32 arrays of X x Y
lattice positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.tree import EXPLORATION, LEAST, SHARPNESS

Array = NDArray[Any]
Position = tuple[int, int, int]
Way = list[tuple["Node", int]]

_PULL = 1e-3
_DIGITS = 5


@dataclass(frozen=True)
class PlainLattice:
    """A lattice, and the entropy that readings at each position remove."""

    shape: Position
    steps: list[Position]
    """Offset of each action."""
    rows: Array
    """Shares removed along x by readings at each position, [X, Y, Z, X]."""
    cols: Array
    """Shares removed along y, [X, Y, Z, Y]."""
    near: tuple[Array, Array]
    """Weights of both axes that halve with every move, [X, X] and [Y, Y]."""
    moves: int
    """Number of moves of a mission."""

    @classmethod
    def of(cls, view: LatticeView) -> PlainLattice:
        """Return the lattice of a view."""
        shape = view.lattice.shape
        listed = torch.tensor(list(product(*map(range, shape))))
        places = listed.view(*shape, 3).to(view.lattice.offsets.device)
        rows, cols = (part.cpu().numpy() for part in view.removed_shares(places))
        apart = [np.abs(np.subtract.outer(range(n), range(n))) for n in shape[:2]]
        near = tuple((0.5**steps).astype(np.float32) for steps in apart)
        steps = [tuple(step) for step in view.lattice.offsets.tolist()]
        return cls(shape, steps, rows, cols, (near[0], near[1]), view.moves)

    def allowed(self, position: Position) -> list[int]:
        """Return the actions that stay on the lattice and move."""
        return [
            action
            for action, step in enumerate(self.steps)
            if any(step)
            and all(0 <= p + s < n for p, s, n in zip(position, step, self.shape, strict=True))
        ]


class Outlook(NamedTuple):
    """Results of the allowed actions at a position."""

    actions: list[int]
    goals: list[Position]
    gains: Array
    scores: Array


@dataclass
class Node:
    """A node and the edges of its allowed actions."""

    position: Position
    left: Array
    gain: float
    """Gain on the way from the root."""
    moves: int
    """Number of moves left in the mission."""
    grows: int
    """Number of moves that the tree may look ahead from here."""
    ahead: Outlook
    priors: Array
    visits: Array
    pending: Array
    best: Array
    children: list[Node | None]
    total: float = 0.0
    """Gain of the whole flight through this node with a greedy rest."""
    rest: Array = field(default_factory=lambda: np.empty(0))
    """Entropy left after that flight."""


class PlainTree:
    """See `TreeSearch`; the attributes are the result of `search`.

    Attributes:
        root: root of the tree.
        action: first action of the best flight.
        rest: entropy left around each lattice position after that flight.
        found: number of leaves.
    """

    def __init__(self, lattice: PlainLattice, simulations: int, depth: int, leaves: int) -> None:
        self.lattice = lattice
        self.simulations, self.depth, self.leaves = simulations, depth, leaves

    def search(self, position: Position, allowed: list[int], left: Array, moves: int) -> None:
        """Grow a tree.

        Args:
            position: position of the UAV.
            allowed: allowed first actions.
            left: entropy around each lattice position.
            moves: number of moves left.
        """
        ahead = self._outlook(position, left, allowed)
        self.root = root = self._node(position, left, 0.0, moves, min(moves, self.depth), ahead)
        self.action = ahead.actions[int(ahead.scores.argmax())]
        self.most = self.least = root.total
        self.rest, self.found, done = root.rest, 0, 0
        while done < self.simulations:
            most = min(self.leaves, done + len(self.lattice.steps))
            walkers = min(most, self.simulations - done)
            self._back_up([self._walk() for _ in range(walkers)])
            done += walkers

    def _walk(self) -> tuple[Way, bool]:
        """Return the nodes and edges of a walk, and whether it ends at a new edge."""
        way: Way = []
        node: Node | None = self.root
        while node is not None:
            scores = self._scores(node)
            if scores.max() == -np.inf:
                return way, False
            edge = int(scores.argmax())
            node.pending[edge] += 1
            way.append((node, edge))
            node = node.children[edge]
        return way, True

    def _scores(self, node: Node) -> Array:
        """Return PUCT's scores; pending walkers count as visits without a gain."""
        after = node.visits + node.pending
        totals = np.where(node.visits > 0, node.best, node.total)
        scaled = np.clip((totals - self.least) / max(self.most - self.least, LEAST), 0, 1)
        found = scaled * np.maximum(node.visits, 1) / np.maximum(after, 1)
        hoped = EXPLORATION * node.priors * np.sqrt(node.visits.sum() + 1) / (1 + after)
        scores = (found + hoped).round(_DIGITS)
        for edge, child in enumerate(node.children):
            taken = node.pending[edge] > 0 if child is None else child.grows == 0
            if node.grows == 0 or taken:
                scores[edge] = -np.inf
        return scores

    def _back_up(self, ways: list[tuple[Way, bool]]) -> None:
        """Create the leaves, and update the edges on the ways to them."""
        new = [(way, self._leaf(*way[-1])) for way, ends in ways if ends]
        for way, _ in ways:
            for node, edge in way:
                node.pending[edge] -= 1
                node.visits[edge] += 1
        for way, leaf in new:
            for node, edge in way:
                node.best[edge] = max(node.best[edge], leaf.total)
            self.least = min(self.least, leaf.total)
        self.found += len(new)
        way, leaf = max(new, key=lambda pair: pair[1].total, default=([], self.root))
        if leaf.total > self.most + LEAST:
            self.most, self.rest = leaf.total, leaf.rest
            self.action = self.root.ahead.actions[way[0][1]]

    def _leaf(self, parent: Node, edge: int) -> Node:
        position, gain = parent.ahead.goals[edge], parent.ahead.gains[edge]
        left = self._after(parent.left, position)
        leaf = self._node(position, left, parent.gain + gain, parent.moves - 1, parent.grows - 1)
        parent.children[edge] = leaf
        return leaf

    def _node(
        self,
        position: Position,
        left: Array,
        gain: float,
        moves: int,
        grows: int,
        ahead: Outlook | None = None,
    ) -> Node:
        ahead = ahead or self._outlook(position, left)
        span = max(ahead.scores.max() - ahead.scores.min(), LEAST)
        priors = np.exp(SHARPNESS * (ahead.scores - ahead.scores.max()) / span)
        nothing = np.zeros(len(priors))
        node = Node(
            position, left, gain, moves, grows, ahead, priors / priors.sum(), nothing,
            nothing.copy(), nothing - np.inf, [None] * len(priors),
        )  # fmt: skip
        node.total, node.rest = gain, left
        for move in range(moves):
            if move:
                ahead = self._outlook(position, node.rest)
            best = int(ahead.scores.argmax())
            position = ahead.goals[best]
            node.total += ahead.gains[best]
            node.rest = self._after(node.rest, position)
        return node

    def _outlook(
        self, position: Position, left: Array, allowed: list[int] | None = None
    ) -> Outlook:
        lattice = self.lattice
        actions = lattice.allowed(position) if allowed is None else allowed
        goals = [
            (position[0] + x, position[1] + y, position[2] + z)
            for x, y, z in (lattice.steps[action] for action in actions)
        ]
        where = tuple(np.array(goals).T)
        gains = ((lattice.rows[where] @ left) * lattice.cols[where]).sum(-1).round(_DIGITS)
        around = lattice.near[0] @ left @ lattice.near[1]
        scores = (gains + _PULL * around[where[:2]]).round(_DIGITS)
        return Outlook(actions, goals, gains, scores)

    def _after(self, left: Array, position: Position) -> Array:
        return left * (1 - np.outer(self.lattice.rows[position], self.lattice.cols[position]))
