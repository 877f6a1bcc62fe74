"""Hazards in a team's flight plans: close approaches between UAVs, and no-fly zones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from marl_framework.deployment.schedule import BEFORE, Array, Schedule
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.no_fly_zones import NoFlyZones

_LATE = 5
"""Number of moves by which UAVs may be out of step; autopilots have been by three to five."""
STEP = 0.5
"""Time step of the search for close approaches [s]; below the shortest wait at a stop."""


class Approach(NamedTuple):
    """Least distance between two UAVs of which the second may be late; UAVs count from 1."""

    metres: float
    uavs: tuple[int, int]
    times: tuple[float, float]
    """Time of each UAV after its take-off [s], without the delay of the second."""
    tolerated: float
    """Delay [s] up to which all UAVs stay the separation apart, at most the longest delay."""


def find_hazards(
    schedule: Schedule, separation: float, zones: NoFlyZones | None, origin: tuple[float, float]
) -> dict[str, Any]:
    """Return the hazards of a team's flight, as entries for `summary.json`.

    `closest_approach` needs two UAVs or more, and `through_zones` needs zones. `separation` is in
    m; `origin` is the lower left corner of the window on the map [m].
    """
    hazards: dict[str, Any] = {}
    late, readings = _LATE * schedule.longest_move, schedule.readings
    if nearest := closest_approach(schedule, late, separation):
        where = []
        for uav, time in zip(nearest.uavs, nearest.times, strict=True):
            leg = int(np.searchsorted(schedule.departures[:, uav - 1], time, side="right")) - 1
            where.append(describe_leg(leg, readings[uav - 1]))
        hazards["closest_approach"] = {
            "metres": round(nearest.metres, 3),
            "uavs": [*nearest.uavs],
            "where": where,
            "delay_s": round(late, 1),
            "tolerated_delay_s": round(nearest.tolerated, 1),
        }
    if zones is not None:
        stops = schedule.stops
        crossings = {
            (n + 1, describe_leg(leg, readings[n])): None
            for leg, (start, end) in enumerate(pairwise(stops))
            for n in range(stops.shape[1])
            if zones.touch(start[n], end[n], origin)
        }
        hazards["through_zones"] = [{"uav": uav, "where": where} for uav, where in crossings]
    return hazards


def warn_of_hazards(missions: Sequence[Mapping[str, Any]], separation: float) -> None:
    """Print a warning for each approach below `separation` [m] and each flight through a zone."""
    for mission in missions:
        nearest = mission.get("closest_approach")
        if nearest is not None and nearest["metres"] < separation:
            first, second = (
                f"UAV {uav} ({where})"
                for uav, where in zip(nearest["uavs"], nearest["where"], strict=True)
            )
            print(
                f"warning: {mission['folder']}: if one UAV is up to {nearest['delay_s']:.0f} s "
                f"late, {first} and {second} come within {nearest['metres']:.1f} m; all stay "
                f"{separation:g} m apart with delays up to {nearest['tolerated_delay_s']:.1f} s"
            )
    for mission in missions:
        for crossing in mission.get("through_zones", ()):
            print(
                f"warning: {mission['folder']}: UAV {crossing['uav']} flies through a no-fly zone "
                f"{crossing['where']}; set deployment.home, or edit the mission files before flying"
            )


def crossed_ways(zones: NoFlyZones, lattice: Lattice, pad: tuple[float, float, float]) -> int:
    """Return the number of positions (x, y) whose straight way to the pad crosses a zone.

    `pad` is (x, y, altitude of the way) [m].
    """
    ways = product(range(lattice.shape[0]), range(lattice.shape[1]))
    ends = [np.array([x * lattice.spacing, y * lattice.spacing, pad[2]]) for x, y in ways]
    return sum(zones.touch(np.array(pad), end, (0.0, 0.0)) for end in ends)


def describe_leg(leg: int, readings: int) -> str:
    """Return a phrase for the part of the flight that contains a leg."""
    if leg < 0:
        return "before take-off"
    if leg < BEFORE:
        return "on the way to its start"
    move = leg - BEFORE + 1
    return f"on move {move}" if move < readings else "on the way home"


def closest_approach(schedule: Schedule, late: float, separation: float) -> Approach | None:
    """Return the closest approach of any two UAVs of which one is up to `late` [s] late.

    The distance is a lower bound, as delays count up to `STEP` longer. None for a single UAV;
    `separation` [m] decides which delay is tolerated.
    """
    uavs, most = schedule.stops.shape[1], math.floor(late / STEP) + 1
    if uavs == 1:
        return None
    samples = math.ceil(schedule.arrivals.max() / STEP) + 1
    # A late UAV stands on its pad at first, and waits for others there after its landing.
    times = STEP * np.arange(-1, samples + most)
    path = positions_at(schedule, times)
    start, end = path[:-1], path[1:]
    approaches, tolerated = [], late
    for steps in range(most + 1):
        for n in range(uavs):
            others = np.delete(np.arange(uavs), n)
            count = len(start) - steps
            # The others pass now where they would have been `steps` earlier.
            distances = segment_distances(
                start[steps:, n, None], end[steps:, n, None],
                start[:count, others], end[:count, others],
            )  # fmt: skip
            k, other = np.unravel_index(distances.argmin(), distances.shape)
            at = float(times[k + steps]), float(times[k])
            pair = n + 1, int(others[other]) + 1
            approaches.append((float(distances[k, other]), pair, at))
            if approaches[-1][0] < separation - 1e-6:
                tolerated = min(tolerated, max(0.0, (steps - 1) * STEP))
    return Approach(*min(approaches), tolerated)


def positions_at(schedule: Schedule, times: Array) -> Array:
    """Return the positions of all UAVs [m], [T, N, 3], at times [s], [T], at constant speeds."""
    stops = schedule.stops.repeat(2, axis=0)
    knots = np.stack((schedule.arrivals, schedule.departures), axis=1).reshape(stops.shape[:2])
    paths = [
        [np.interp(times, knots[:, n], stops[:, n, axis]) for axis in range(3)]
        for n in range(stops.shape[1])
    ]
    return np.array(paths).transpose(2, 0, 1)


def segment_distances(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Return the distances [...] of line segments ab and cd; all points are [..., 3]."""
    u, v, w = b - a, d - c, a - c
    uu, uv, vv = (u * u).sum(-1), (u * v).sum(-1), (v * v).sum(-1)
    uw, vw = (u * w).sum(-1), (v * w).sum(-1)
    determinant = uu * vv - uv * uv
    skew = determinant > 1e-12 * uu * vv
    safe = np.where(skew, determinant, 1.0)
    s, t = (uv * vw - vv * uw) / safe, (uu * vw - uv * uw) / safe
    inside = skew & (s > 0) & (s < 1) & (t > 0) & (t < 1)
    within = np.linalg.norm(w + s[..., None] * u - t[..., None] * v, axis=-1)
    ends = ((a, c, d), (b, c, d), (c, a, b), (d, a, b))
    at_ends = np.min([point_distances(*points) for points in ends], axis=0)
    return np.where(inside, np.minimum(within, at_ends), at_ends)


def point_distances(point: Array, a: Array, b: Array) -> Array:
    """Return the distances [...] of points from line segments ab; all points are [..., 3]."""
    line = b - a
    square = (line * line).sum(-1)
    share = ((point - a) * line).sum(-1) / np.where(square > 0, square, 1.0)
    return np.linalg.norm(a + share.clip(0, 1)[..., None] * line - point, axis=-1)
