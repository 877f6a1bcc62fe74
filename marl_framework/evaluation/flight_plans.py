"""Plans of a team's flights: from home to the starts, along the mission, and back.

All UAVs leave at the same moment and wait for the slowest at every stop. They climb and descend
in columns of their own, and fly to their starts and back at altitudes of their own, above those
of the mission.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from marl_framework.config.mission import DeploymentConfig

Array = npt.NDArray[Any]

BEFORE, AFTER = 3, 3
"""Stops before the first and after the last reading, on the ground included."""
# MAV_CMD and MAV_FRAME of MAVLink's common message set.
WAYPOINT, RETURN, TAKE_OFF, SPEED, PHOTO = 16, 20, 22, 178, 2000
_COMMAND_FRAME, ABOVE_HOME, ABOVE_GROUND = 2, 3, 10


@dataclass(frozen=True)
class Item:
    """One item of a MAVLink mission."""

    command: int
    frame: int
    params: tuple[float | None, ...]
    """Seven; a position is latitude, longitude, altitude in the last three. None: not used."""

    @property
    def has_position(self) -> bool:
        """Whether the last three parameters are a position."""
        return self.frame != _COMMAND_FRAME


@dataclass(frozen=True)
class Approach:
    """How near two UAVs come to each other."""

    metres: float
    leg: int
    """Number of the leg, from 0; it ends at stop leg + 1."""
    uavs: tuple[int, int]
    """Their numbers, from 1."""


def team_stops(
    paths: Sequence[Array], home: tuple[float, float], separation: float, top: float
) -> Array:
    """Return all stops of a team from take-off to landing, [S, N, 3] [m].

    A UAV that makes fewer readings than others flies home at once and stays on the ground.

    Args:
        paths: position of each reading of each UAV [m], [readings, 3] each; x to the east.
        home: where UAV 1 takes off (x, y) [m]; the others do so east of it.
        separation: between the UAVs at home, and between their altitudes on the way [m].
        top: highest altitude of the mission [m].
    """
    most = max(map(len, paths))
    tracks = []
    for n, path in enumerate(paths):
        pad, level = (home[0] + separation * n, home[1]), top + separation * (n + 1)
        start, end = path[0, :2], path[-1, :2]
        out = [(*pad, 0.0), (*pad, level), (*start, level)]
        back = [(*end, level), (*pad, level), *[(*pad, 0.0)] * (most - len(path) + 1)]
        tracks.append(np.concatenate((out, path, back)))
    return np.stack(tracks, axis=1)


def waits(stops: Array, speed: float) -> Array:
    """Return how long each UAV waits for the slowest at each stop [s], [S, N]."""
    seconds = np.linalg.norm(np.diff(stops, axis=0), axis=-1) / speed
    waiting = seconds.max(axis=1, keepdims=True) - seconds
    return np.concatenate((np.zeros_like(waiting[:1]), waiting))


def closest_approach(stops: Array, speed: float) -> Approach | None:
    """Return where two UAVs come nearest to each other; None for a single UAV."""
    number = stops.shape[1]
    found = [
        Approach(_nearest(stops[k, (a, b), :], stops[k + 1, (a, b), :], speed), k, (a + 1, b + 1))
        for k in range(len(stops) - 1)
        for a in range(number)
        for b in range(a + 1, number)
    ]
    return min(found, key=lambda approach: approach.metres, default=None)


def _nearest(start: Array, end: Array, speed: float) -> float:
    """Return the least distance of two UAVs that fly from `start` to `end`, [2, 3] each."""
    length = np.linalg.norm(end - start, axis=-1)
    arrival = length / speed

    def positions(time: float) -> Array:
        share = np.divide(time, arrival, out=np.ones(2), where=arrival > 0)
        return start + np.minimum(share, 1.0)[:, None] * (end - start)

    times = [0.0, *sorted(arrival)]
    gaps = [np.subtract(*positions(time)) for time in times]
    return min(_to_origin(a, b) for a, b in pairwise(gaps))


def _to_origin(a: Array, b: Array) -> float:
    """Return the distance of the line from a to b from the origin."""
    line = b - a
    square = float(line @ line)
    share = 0.0 if square == 0 else min(1.0, max(0.0, float(-a @ line) / square))
    return float(np.linalg.norm(a + share * line))


def mission_items(
    degrees: Array, altitudes: Array, waiting: Array, readings: int, settings: DeploymentConfig
) -> list[Item]:
    """Return the mission of one UAV: take-off, waypoints with photos, return.

    Args:
        degrees: (longitude, latitude) of its stops, [S, 2].
        altitudes: of its stops [m], [S].
        waiting: at its stops [s], [S].
        readings: number of them; the others have landed.
        settings: altitudes and speed.
    """
    frame = ABOVE_GROUND if settings.altitudes == "ground" else ABOVE_HOME
    latitude, longitude = degrees[:, 1].round(9).tolist(), degrees[:, 0].round(9).tolist()
    stops = list(zip(latitude, longitude, altitudes.round(3).tolist(), strict=True))
    items = [
        Item(TAKE_OFF, ABOVE_HOME, (0, 0, 0, None, *stops[1])),
        Item(SPEED, _COMMAND_FRAME, (1, settings.speed, -1, 0, 0, 0, 0)),
    ]
    for k in range(1, BEFORE + readings + AFTER - 1):
        seconds = round(float(waiting[k]), 1)
        items.append(Item(WAYPOINT, frame, (seconds, 0, 0, None, *stops[k])))
        if BEFORE <= k < BEFORE + readings:
            items.append(Item(PHOTO, _COMMAND_FRAME, (0, 0, 1, 0, 0, 0, 0)))
    return [*items, Item(RETURN, _COMMAND_FRAME, (0, 0, 0, 0, 0, 0, 0))]
