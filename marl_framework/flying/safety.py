"""Rules that decide, outside the policy, whether a UAV may make a move or must stop.

Places are lattice indices; ways are straight, and UAVs may be anywhere on them at any time. A UAV
may have to climb and return from there, so ways are kept apart horizontally.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marl_framework.config.flying import FlyingConfig
from marl_framework.deployment.hazards import point_distances, segment_distances
from marl_framework.flying.messages import Place
from marl_framework.flying.protocols import Status

Point = npt.NDArray[np.float64]


class Way(NamedTuple):
    """Where another UAV is, and where it flies next."""

    place: Place
    next: Place | None = None
    """Announced next place; None if it has not announced one yet."""
    lost: bool = False
    """Whether it may have flown one more move, unheard."""


class Rules(NamedTuple):
    """What the rules need to know of a mission."""

    metres: Point
    """Coordinates of the places of the lattice [m], [X, Y, Z, 3]."""
    reach: float = 0.0
    """Horizontal length of the longest move [m]."""
    separation: float = 0.0
    """Least horizontal distance between the ways of two UAVs [m]; with 0, a UAV may cross ways and
    enter a place that another has not left yet, as in the simulator."""


def refusal(
    start: Place, goal: Place, open_goals: Set[Place], others: Mapping[int, Way], rules: Rules
) -> str | None:
    """Return why a UAV must not fly from `start` to `goal`, or None if it may.

    `open_goals` are the places that lattice, zones and obstacles leave open from `start`; `others`
    are the other UAVs in the air, by index.
    """
    if goal not in open_goals:
        return "leaves the open part of the lattice"
    for uav, way in others.items():
        if goal == (way.next or (way.place if way.lost else None)):
            return f"UAV {uav + 1} has announced the same place"
        places = start, goal, way.place, way.next or way.place
        ends = [rules.metres[place] * (1, 1, 0) for place in places]
        distance = float(segment_distances(*ends)) - way.lost * rules.reach
        if rules.separation and distance < rules.separation - 1e-6:
            return f"comes within {max(distance, 0):.1f} m of the way of UAV {uav + 1}"
    return None


def vehicle_problem(
    status: Status, now: float, way: tuple[Point, Point] | None, limits: FlyingConfig
) -> str | None:
    """Return why a UAV must stop, judged by its telemetry, or None.

    `way` has the ends of the way on which it must be [m]; None while it may be anywhere.
    """
    if now - status.time > limits.telemetry_timeout:
        return "no telemetry"
    if status.position is None:
        return "no position"
    if math.isnan(status.battery):
        return "no battery level"
    if way is not None:
        error = float(point_distances(np.array(status.position), *way))
        if error > limits.position_error:
            return f"is {error:.1f} m off its way"
    return None
