"""The plain baseline: one agent at a time with numpy and OpenCV, without torch and batches.

It implements the mission in the most literal way, as an independent reference for the batched code
and a baseline for its speed. Maps are float32 arrays of R x C cells, x first; positions are lattice
indices (x, y, z); a reading is the likelihood of "region of interest" in the cells of a clipped
footprint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from marl_framework.config.model import Config

Map = NDArray[np.floating[Any]]
Position = tuple[int, int, int]

CLAMP = 1e-4
UNKNOWN = 0.5
LOWER, UPPER = 0.499, 0.501  # pooled values between the two count half
SIDEWAYS = ((-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0))
GRID = tuple(product((-1, 0, 1), repeat=2))
OFFSETS: dict[int, tuple[Position, ...]] = {
    4: SIDEWAYS,
    6: ((0, 0, 1), *SIDEWAYS, (0, 0, -1)),
    9: tuple((x, y, 0) for x, y in GRID),
    27: tuple((x, y, z) for z in (1, 0, -1) for x, y in GRID),
}


def _floor(value: float) -> int:
    """Round down, with a tolerance of 1e-9 below integers."""
    return math.floor(value + 1e-9)


def _side(altitude: float, angle: float, res: float) -> int:
    """Return the side of a footprint [cells], even, from an opening angle [degrees]."""
    return 2 * (_floor(2 * altitude * math.tan(math.radians(angle) / 2) / res) // 2)


def _noise(config: Config, altitude: float) -> float:
    """Return the probability that a cell is read wrongly at an altitude [m]."""
    model = config.sensor.model
    if model.type == "exponential":
        return model.coeff_a * (1 - math.exp(-model.coeff_b * altitude))
    known = sorted(model.table)
    return float(np.interp(altitude, known, [model.table[h] for h in known]))


@dataclass(frozen=True)
class Geometry:
    """Numbers of a mission, computed once from a configuration.

    Lengths are metres, map sizes cells; `sides` and `noise` have one entry per altitude.
    """

    lattice: tuple[int, int, int]
    cells: tuple[int, int]
    cell_size: tuple[float, float]
    spacing: float
    altitudes: tuple[float, ...]
    sides: tuple[tuple[int, int], ...]
    noise: tuple[float, ...]
    offsets: tuple[Position, ...]
    budget: int
    prior: float

    @classmethod
    def of(cls, config: Config) -> Geometry:
        """Return the geometry of a configuration."""
        constraints, view = config.experiment.constraints, config.sensor.field_of_view
        res_x, res_y = config.geometry.cell_size
        return cls(
            lattice=config.geometry.lattice_shape,
            cells=config.geometry.map_shape,
            cell_size=(res_x, res_y),
            spacing=constraints.spacing,
            altitudes=config.geometry.altitudes,
            sides=tuple(
                (_side(h, view.angle_x, res_x), _side(h, view.angle_y, res_y))
                for h in config.geometry.altitudes
            ),
            noise=tuple(_noise(config, h) for h in config.geometry.altitudes),
            offsets=OFFSETS[constraints.num_actions],
            budget=max(config.missions.budgets),
            prior=config.mapping.prior,
        )

    def metres(self, position: Position) -> NDArray[np.float64]:
        """Return a lattice position in metres, [3]."""
        x, y, z = position
        return np.array([x * self.spacing, y * self.spacing, self.altitudes[z]])


# The sensor -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """Footprint of a UAV: its corner and sides [cells], and the part on the map."""

    top: int
    left: int
    side_x: int
    side_y: int
    row0: int
    row1: int
    col0: int
    col1: int

    @property
    def window(self) -> tuple[slice, slice]:
        """Slices that cut the clipped footprint out of a map."""
        return slice(self.row0, self.row1), slice(self.col0, self.col1)


def footprint(geometry: Geometry, position: Position) -> Footprint:
    """Return the cells seen from a lattice position: centred, half-open, clipped to the map."""
    x, y, z = position
    side_x, side_y = geometry.sides[z]
    top = _floor(x * geometry.spacing / geometry.cell_size[0]) - side_x // 2
    left = _floor(y * geometry.spacing / geometry.cell_size[1]) - side_y // 2
    rows, cols = geometry.cells
    row0, row1 = max(top, 0), min(top + side_x, rows)
    col0, col1 = max(left, 0), min(left + side_y, cols)
    return Footprint(top, left, side_x, side_y, row0, row1, col0, col1)


def measure(
    geometry: Geometry, truth: NDArray[np.bool_], position: Position, rng: np.random.Generator
) -> Map:
    """Read the footprint: each cell flips with the altitude's noise; returns likelihoods."""
    seen = truth[footprint(geometry, position).window]
    noise = geometry.noise[position[2]]
    read = seen ^ (rng.random(seen.shape) < noise)
    return np.where(read, 1 - noise, noise).astype(np.float32)


def square(seen: Footprint, reading: Map) -> Map:
    """Return the reading in the whole, unclipped footprint, 0.5 beyond the map's edge."""
    tile = np.full((seen.side_x, seen.side_y), UNKNOWN, np.float32)
    row, col = seen.row0 - seen.top, seen.col0 - seen.left
    tile[row : row + reading.shape[0], col : col + reading.shape[1]] = reading
    return tile


# Communication and fusion -----------------------------------------------------------------


def near(geometry: Geometry, one: Position, other: Position, communication_range: float) -> bool:
    """Return whether two agents are in radio range [m], by their distance in 3-D."""
    distance = np.linalg.norm(geometry.metres(one) - geometry.metres(other))
    return bool(distance <= communication_range)


def bayes(belief: Map, reading: Map, prior: float) -> Map:
    """Update cells by a reading of them: `p z (1-q) / (p z (1-q) + (1-p) (1-z) q)`."""
    p = np.clip(belief.astype(np.float64), CLAMP, 1 - CLAMP)
    yes = p * reading * (1 - prior)
    return (yes / (yes + (1 - p) * (1 - reading) * prior)).astype(np.float32)


def fuse(belief: Map, seen: Footprint, reading: Map, prior: float) -> None:
    """Fuse a reading into a belief, in place and only in the footprint."""
    belief[seen.window] = bayes(belief[seen.window], reading, prior)


# Maps -------------------------------------------------------------------------------------


def _overlaps(size: int, parts: int) -> NDArray[np.float64]:
    """Return the weights of `size` cells in the means of `parts` equal intervals, [parts, size]."""
    edges = np.linspace(0, size, parts + 1)
    cell = np.arange(size)
    left = np.maximum(edges[:-1, None], cell)
    right = np.minimum(edges[1:, None], cell + 1)
    return np.maximum(right - left, 0) * parts / size


def area(source: Map, lattice: tuple[int, ...]) -> Map:
    """Average a map onto the lattice's X x Y cells; cells count by their overlap.

    OpenCV's area interpolation does so only if both axes shrink: with one axis growing it samples
    the other. Otherwise this multiplies by the overlaps.
    """
    x, y = lattice[:2]
    if source.shape[0] >= x and source.shape[1] >= y:
        return np.asarray(cv2.resize(source, (y, x), interpolation=cv2.INTER_AREA), np.float32)
    exact = _overlaps(source.shape[0], x) @ source @ _overlaps(source.shape[1], y).T
    return exact.astype(np.float32)


def binary_entropy(p: Map) -> Map:
    """Return the entropy of cells [bit], with p clamped."""
    p = np.clip(p, CLAMP, 1 - CLAMP)
    return -p * np.log2(p) - (1 - p) * np.log2(1 - p)


def weight(p: Map) -> Map:
    """Return 1 for cells of interest, 0 for others, 0.5 for undecided ones."""
    return np.where(p > UPPER, 1.0, np.where(p < LOWER, 0.0, 0.5)).astype(np.float32)


def budget(geometry: Geometry, t: int) -> Map:
    """Return the actor's first channel: the share of moves left."""
    return np.full(geometry.lattice[:2], (geometry.budget - t) / geometry.budget, np.float32)


def agent_id(geometry: Geometry, agent: int, n_agents: int) -> Map:
    """Return the actor's second channel: the agent's id."""
    return np.full(geometry.lattice[:2], (agent + 1) / n_agents, np.float32)


def position(
    geometry: Geometry, positions: Sequence[Position], agent: int, heard: list[int]
) -> Map:
    """Return the lattice centred on an agent, with the heard agents.

    Cells off the lattice are 0, others 1; an agent's cell holds (z + 1) / (Z + 1).
    """
    x_size, y_size, z_size = geometry.lattice
    x0, y0 = positions[agent][0] - x_size // 2, positions[agent][1] - y_size // 2
    channel = np.zeros((x_size, y_size), np.float32)
    channel[max(-x0, 0) : x_size - x0, max(-y0, 0) : y_size - y0] = 1
    for other in [agent, *(j for j in heard if j != agent)]:
        x, y, z = positions[other]
        if 0 <= x - x0 < x_size and 0 <= y - y0 < y_size:
            channel[x - x0, y - y0] = (z + 1) / (z_size + 1)
    return channel


def entropy(pooled: Map) -> Map:
    """Return the weighted entropy of a belief averaged onto the lattice."""
    return weight(pooled) * binary_entropy(pooled)


def local_entropy(geometry: Geometry, seen: Footprint, reading: Map) -> Map:
    """Return the weighted entropy of an agent's latest reading, in its square footprint."""
    return entropy(area(square(seen, reading), geometry.lattice))


def probability(pooled: Map) -> Map:
    """Return a belief averaged onto the lattice, clamped."""
    return np.clip(pooled, CLAMP, 1 - CLAMP)


def footprints(geometry: Geometry, own: Sequence[Footprint], others: Sequence[Footprint]) -> Map:
    """Return the footprints, averaged: 1 in own ones, else 0 in others', else 0.5."""
    full = np.full(geometry.cells, UNKNOWN, np.float32)
    for seen in others:
        full[seen.window] = 0
    for seen in own:
        full[seen.window] = 1
    return area(full, geometry.lattice)


def global_position(geometry: Geometry, positions: Sequence[Position]) -> Map:
    """Return the lattice with (z + 1) / Z in the cell of each agent, 0 elsewhere."""
    channel = np.zeros(geometry.lattice[:2], np.float32)
    for x, y, z in positions:
        channel[x, y] = (z + 1) / geometry.lattice[2]
    return channel


def other_actions(
    geometry: Geometry, positions: Sequence[Position], actions: Sequence[int], agent: int
) -> Map:
    """Return the lattice with (action + 1) / A in every other agent's cell, 0 elsewhere."""
    channel = np.zeros(geometry.lattice[:2], np.float32)
    for other, (x, y, _) in enumerate(positions):
        if other != agent:
            channel[x, y] = (actions[other] + 1) / len(geometry.offsets)
    return channel


# Observations -----------------------------------------------------------------------------


def actor_observation(
    geometry: Geometry,
    t: int,
    agent: int,
    positions: Sequence[Position],
    heard: list[int],
    belief: Map,
    readings: Sequence[Map],
) -> Map:
    """Return an agent's 7 channels after fusing, [X, Y, 7].

    `heard` lists the ids of the heard agents; `readings` holds the latest reading of each agent.
    """
    seen = [footprint(geometry, place) for place in positions]
    pooled = area(belief, geometry.lattice)
    channels = [
        budget(geometry, t),
        agent_id(geometry, agent, len(positions)),
        position(geometry, positions, agent, heard),
        entropy(pooled),
        local_entropy(geometry, seen[agent], readings[agent]),
        probability(pooled),
        footprints(geometry, [seen[agent]], [seen[j] for j in heard if j != agent]),
    ]
    return np.stack(channels, axis=-1)


def critic_extra(
    geometry: Geometry,
    agent: int,
    positions: Sequence[Position],
    actions: Sequence[int],
    global_belief: Map,
) -> Map:
    """Return the critic's 5 additional channels, [X, Y, 5]."""
    pooled = area(global_belief, geometry.lattice)
    channels = [
        global_position(geometry, positions),
        entropy(pooled),
        probability(pooled),
        footprints(geometry, [footprint(geometry, place) for place in positions], []),
        other_actions(geometry, positions, actions, agent),
    ]
    return np.stack(channels, axis=-1)


# Moves ------------------------------------------------------------------------------------


def move(geometry: Geometry, place: Position, action: int) -> Position:
    """Return the lattice position after an action."""
    dx, dy, dz = geometry.offsets[action]
    return place[0] + dx, place[1] + dy, place[2] + dz


def boundary_mask(geometry: Geometry, place: Position) -> NDArray[np.bool_]:
    """Return the actions that stay on the lattice, [A]; standing still is never allowed."""
    allowed = np.zeros(len(geometry.offsets), dtype=bool)
    for action in range(len(allowed)):
        goal = move(geometry, place, action)
        on_lattice = all(0 <= a < size for a, size in zip(goal, geometry.lattice, strict=True))
        allowed[action] = on_lattice and goal != place
    return allowed


def action_mask(
    geometry: Geometry, place: Position, taken: Sequence[Position]
) -> NDArray[np.bool_]:
    """Return the allowed actions, [A], given the next positions of earlier agents, by id.

    An (x, y) that is taken is masked at any altitude; the last allowed action is never masked.
    """
    allowed = boundary_mask(geometry, place)
    for x, y, _ in taken:
        for action in range(len(allowed)):
            meets = move(geometry, place, action)[:2] == (x, y)
            if allowed[action] and meets and allowed.sum() > 1:
                allowed[action] = False
    return allowed


# Reward and metrics -----------------------------------------------------------------------


def utilities(before: Map, after: Map) -> tuple[float, float]:
    """Return the (absolute, relative) information gained between two global beliefs [bit]."""
    old, new = before.astype(np.float64), after.astype(np.float64)
    w = weight(new)
    gained = float(np.mean(w * (binary_entropy(old) - binary_entropy(new))))
    there = float(np.mean(w * binary_entropy(old)))
    return gained, gained / there if there else 0.0


def roi_entropy(belief: Map, truth: NDArray[np.bool_]) -> float:
    """Return the mean entropy over the cells of interest [bit], 0 without any."""
    return float(np.mean(binary_entropy(belief[truth].astype(np.float64)))) if truth.any() else 0.0


def f1(belief: Map, truth: NDArray[np.bool_]) -> float:
    """Return the F1 score of the cells of interest; undecided cells count as not found."""
    found = belief > UPPER
    right = int(np.sum(found & truth))
    total = int(found.sum() + truth.sum())
    return 2 * right / total if total else 0.0
