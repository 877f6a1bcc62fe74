"""Hazards in a team's flight plans: close approaches between UAVs, and no-fly zones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from marl_framework.deployment.flight_plans import BEFORE, Array
from marl_framework.mission.no_fly_zones import NoFlyZones


class Approach(NamedTuple):
    """Smallest distance between two UAVs on a leg; UAVs count from 1, leg k ends at stop k + 1."""

    metres: float
    leg: int
    uavs: tuple[int, int]


def find_hazards(
    stops: Array,
    readings: Sequence[int],
    speed: float,
    zones: NoFlyZones | None,
    origin: tuple[float, float],
) -> dict[str, Any]:
    """Return the hazards of a team's flight, as entries for `summary.json`.

    `closest_approach` needs two UAVs or more, and `through_zones` needs zones. `stops` come from
    `team_stops`, [S, N, 3] [m]; `readings` is the number of readings per UAV; `speed` is in m/s;
    `origin` is the lower left corner of the window on the map [m].
    """
    hazards: dict[str, Any] = {}
    if nearest := closest_approach(stops, speed):
        where = describe_leg(nearest.leg, max(readings[uav - 1] for uav in nearest.uavs))
        metres = round(nearest.metres, 3)
        hazards["closest_approach"] = {"metres": metres, "uavs": [*nearest.uavs], "where": where}
    if zones is not None:
        crossings = {
            (n + 1, describe_leg(leg, readings[n])): None
            for leg, (start, end) in enumerate(pairwise(stops))
            for n in range(stops.shape[1])
            if zones.touch(start[n], end[n], origin)
        }
        hazards["through_zones"] = [{"uav": uav, "where": where} for uav, where in crossings]
    return hazards


def warn_of_hazards(missions: Sequence[Mapping[str, Any]], least: float) -> None:
    """Print a warning for each approach below `least` [m] and each flight through a zone."""
    change = "edit the mission files before flying"
    for mission in missions:
        nearest = mission.get("closest_approach")
        if nearest is not None and nearest["metres"] < least:
            first, second = nearest["uavs"]
            print(
                f"warning: {mission['folder']}: UAVs {first} and {second} come within "
                f"{nearest['metres']:.1f} m of each other {nearest['where']}; {change}"
            )
    for mission in missions:
        for crossing in mission.get("through_zones", ()):
            print(
                f"warning: {mission['folder']}: UAV {crossing['uav']} flies through a no-fly zone "
                f"{crossing['where']}; set deployment.home, or {change}"
            )


def describe_leg(leg: int, readings: int) -> str:
    """Return a phrase for the part of the flight that contains a leg."""
    if leg < BEFORE:
        return "on the way to their starts"
    move = leg - BEFORE + 1
    return f"on move {move}" if move < readings else "on the way home"


def closest_approach(stops: Array, speed: float) -> Approach | None:
    """Return the closest approach of any two UAVs; None for a single UAV."""
    approaches = [
        Approach(_smallest_distance(start[[a, b]], end[[a, b]], speed), leg, (a + 1, b + 1))
        for leg, (start, end) in enumerate(pairwise(stops))
        for a, b in combinations(range(stops.shape[1]), 2)
    ]
    return min(approaches, key=lambda approach: approach.metres, default=None)


def _smallest_distance(start: Array, end: Array, speed: float) -> float:
    """Return the smallest distance between two UAVs that fly from `start` to `end`, [2, 3]."""
    arrival = np.linalg.norm(end - start, axis=-1) / speed

    def gap(time: float) -> Array:
        share = np.divide(time, arrival, out=np.ones(2), where=arrival > 0)
        positions = start + np.minimum(share, 1.0)[:, None] * (end - start)
        return np.subtract(*positions)

    gaps = map(gap, (0.0, *sorted(arrival)))
    return min(_distance_to_origin(a, b) for a, b in pairwise(gaps))


def _distance_to_origin(a: Array, b: Array) -> float:
    """Return the distance from the origin to the line segment between two points."""
    line = b - a
    square = float(line @ line)
    share = 0.0 if square == 0 else min(1.0, max(0.0, float(-a @ line) / square))
    return float(np.linalg.norm(a + share * line))
