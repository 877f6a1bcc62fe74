"""Rules that decide, outside the policy, whether a UAV may make a move.

Places are lattice indices; ways are straight, and UAVs may be anywhere on them at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marl_framework.deployment.hazards import segment_distances
from marl_framework.flying.messages import Place

Point = npt.NDArray[np.float64]


class Way(NamedTuple):
    """Where another UAV is, and where it flies next."""

    place: Place
    next: Place | None = None
    """Announced next place, or the place where it stays; None if it has not announced one yet."""


def refusal(
    start: Place,
    goal: Place,
    open_goals: Set[Place],
    others: Mapping[int, Way],
    metres: Callable[[Place], Point],
    separation: float = 0.0,
) -> str | None:
    """Return why a UAV must not fly from `start` to `goal`, or None if it may.

    Args:
        start: place of the UAV.
        goal: next place of the UAV.
        open_goals: places that lattice, zones and obstacles leave open from `start`.
        others: other UAVs, by index.
        metres: returns the coordinates of a place on the lattice [m], [3].
        separation: least distance between the ways of two UAVs [m]; with 0, a UAV may cross ways
            and enter a place that another has not left yet, as in the simulator.
    """
    if goal not in open_goals:
        return "leaves the open part of the lattice"
    for uav, way in others.items():
        if goal == way.next:
            return f"UAV {uav + 1} has announced the same place"
        ends = start, goal, way.place, way.next or way.place
        distance = float(segment_distances(*map(metres, ends)))
        if distance < separation - 1e-6:
            return f"comes within {distance:.1f} m of the way of UAV {uav + 1}"
    return None
