"""Where and when the UAVs of a team fly: stops, legs and waits.

All UAVs leave home at the same time and wait at every stop for the slowest UAV. They climb and
descend in separate columns, and fly to and from the mission at separate altitudes above the
mission.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marl_framework.config.mission import DeploymentConfig

Array = npt.NDArray[Any]

BEFORE, AFTER = 3, 3  # stops before the first and after the last reading, also on the ground
JERK = 4.0  # of each leg [m/s³], as the parameter files of the UAVs set it
_SHORTEST_WAIT = 1.0  # [s]; whole seconds, as ArduPilot ignores fractions
_TURN = 5.0  # wait after take-off [s], to turn to the heading of the mission
_LANDING_HEIGHT, _LANDING_SPEED = 10.0, 0.5  # height [m] below which autopilots land slowly [m/s]


class Schedule(NamedTuple):
    """Stops of a team, and when each UAV is there; times count from take-off."""

    stops: Array
    """Positions [m], [S, N, 3]; x points east, the third coordinate is the altitude."""
    arrivals: Array
    """Arrival at each stop [s], [S, N]; that of the last stop is the end of the landing."""
    departures: Array
    """Departure from each stop [s], [S, N]."""
    readings: Sequence[int]
    """Number of readings of each UAV."""

    @property
    def waits(self) -> Array:
        """Wait at each stop [s], [S, N]; whole seconds."""
        return (self.departures - self.arrivals).round()

    @property
    def longest_move(self) -> float:
        """Time of the slowest move from one reading to the next, with the wait there [s]."""
        moves = [
            np.diff(self.departures[BEFORE : BEFORE + number, n])
            for n, number in enumerate(self.readings)
        ]
        return float(np.concatenate(moves).max(initial=0.0))


def team_schedule(
    tracks: Sequence[Array], home: tuple[float, float], top: float, settings: DeploymentConfig
) -> Schedule:
    """Return the flight of a team from take-off to landing.

    Args:
        tracks: positions of each UAV's readings [m], [readings, 3] each.
        home: take-off point of UAV 1 [m].
        top: highest altitude of the mission [m].
        settings: speeds, acceleration, and distances between UAVs.
    """
    stops = team_stops(tracks, home, top, settings)
    readings = [len(track) for track in tracks]
    legs = leg_seconds(stops[:-1], stops[1:], settings)
    # The last waypoint is above the pad; the landing follows.
    last = BEFORE + np.array(readings) + AFTER - 2
    uavs = np.arange(len(readings))
    legs[last, uavs] = landing_seconds(stops[last, uavs], settings)
    arrivals, departures = np.zeros(stops.shape[:2]), np.zeros(stops.shape[:2])
    for k in range(1, len(stops)):
        arrivals[k] = departures[k - 1] + legs[k - 1]
        flying = k <= last
        shortest = _TURN if k == 1 else _SHORTEST_WAIT
        latest = arrivals[k].max(where=flying, initial=0.0)
        waits = np.round(latest + shortest - arrivals[k])
        departures[k] = arrivals[k] + np.where(flying, waits, 0.0)
    return Schedule(stops, arrivals, departures, readings)


def team_stops(
    tracks: Sequence[Array], home: tuple[float, float], top: float, settings: DeploymentConfig
) -> Array:
    """Return all stops of a team from take-off to landing, [S, N, 3] [m].

    A UAV with fewer readings than others flies home early and stays on the ground. UAV 1 takes off
    at `home` and the others further east.
    """
    most = max(map(len, tracks))
    stops = []
    for n, track in enumerate(tracks):
        pad = (home[0] + settings.pad_distance * n, home[1])
        level = transit_altitude(n, top, settings)
        start, end = track[0, :2], track[-1, :2]
        out = [(*pad, 0.0), (*pad, level), (*start, level)]
        back = [(*end, level), (*pad, level), *[(*pad, 0.0)] * (most - len(track) + 1)]
        stops.append(np.concatenate((out, track, back)))
    return np.stack(stops, axis=1)


def transit_altitude(uav: int, top: float, settings: DeploymentConfig) -> float:
    """Return the altitude at which UAV `uav` (from 0) flies to and from its mission [m]."""
    return top + settings.separation * (uav + 1)


def leg_seconds(start: Array, end: Array, settings: DeploymentConfig) -> Array:
    """Return the time of straight legs from rest to rest [s], [...]; `start` and `end` [..., 3].

    The speed is a trapezoid (or a triangle, on short legs) with limits of its horizontal and
    vertical parts. The limit of the jerk rounds its corners, which lengthens a leg by about
    acceleration / jerk.
    """
    way = end - start
    length, level = np.linalg.norm(way, axis=-1), np.linalg.norm(way[..., :2], axis=-1)
    vertical = np.where(way[..., 2] > 0, settings.climb_speed, settings.descent_speed)
    # The time at full speed; the slower of the two parts decides.
    cruise = np.maximum(level / settings.speed, np.abs(way[..., 2]) / vertical)
    top_speed = length / np.maximum(cruise, 1e-9)
    acceleration = settings.acceleration
    trapezoid = cruise + top_speed / acceleration
    triangle = 2 * np.sqrt(length / acceleration)
    seconds = np.where(length > top_speed**2 / acceleration, trapezoid, triangle)
    return np.where(length > 0, seconds + acceleration / JERK, 0.0)


def landing_seconds(above: Array, settings: DeploymentConfig) -> Array:
    """Return the time of a landing from each position `above` [m], [..., 3], in s, [...]."""
    height = np.minimum(above[..., 2], _LANDING_HEIGHT)
    low = np.concatenate((above[..., :2], height[..., None]), axis=-1)
    return leg_seconds(above, low, settings) + height / _LANDING_SPEED
