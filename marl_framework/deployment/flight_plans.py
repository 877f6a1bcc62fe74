"""Flight plans of a team, and plan files for ground stations.

All UAVs leave home at the same time and wait at every stop for the slowest UAV. They climb and
descend in separate columns, and fly to and from the mission at separate altitudes above the
mission.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marl_framework.config.errors import ConfigError
from marl_framework.config.mission import DeploymentConfig
from marl_framework.config.model import Config
from marl_framework.evaluation.figures import polygons
from marl_framework.mission.no_fly_zones import NoFlyZones
from marl_framework.mission.terrains.geotiff import Place
from marl_framework.runs.files import write_json

Array = npt.NDArray[Any]
Degrees = list[float]  # (latitude, longitude) in WGS 84

BEFORE, AFTER = 3, 3  # stops before the first and after the last reading, also on the ground
# MAV_CMD and MAV_FRAME of MAVLink's common message set.
WAYPOINT, RETURN, TAKE_OFF, SPEED, PHOTO = 16, 20, 22, 178, 2000
COMMAND_FRAME, ABOVE_HOME, ABOVE_GROUND = 2, 3, 10
_PX4, _ARDUPILOT = 12, 3  # MAV_AUTOPILOT
_QUADROTOR = 2  # MAV_TYPE
_ABOVE_HOME_MODE, _ABOVE_GROUND_MODE = 1, 4  # QGroundControl's AltMode
_FARTHEST_HOME = 50e3  # [m]
_FENCED = 1e3  # margin around a window [m]
_FENCE_ERROR = 0.02  # [m]


class Item(NamedTuple):
    """Item of a MAVLink mission."""

    command: int
    frame: int
    params: tuple[float | None, ...]
    """Seven parameters, None if unused; the last three are (latitude, longitude, altitude)."""


class FlightPlan(NamedTuple):
    """Flight of one UAV from take-off to landing, with fences around closed areas."""

    uav: int
    """Number of the UAV, from 1."""
    home: Degrees
    speed: float
    """Speed [m/s]."""
    items: Sequence[Item]
    fences: Sequence[Sequence[Degrees]] = ()


def flight_plans(
    stops: Array,
    readings: Sequence[int],
    place: Place,
    settings: DeploymentConfig,
    fences: Sequence[Sequence[Degrees]] = (),
) -> Iterator[FlightPlan]:
    """Yield the plan of each UAV; `stops` are those of `team_stops`, [S, N, 3] [m]."""
    waiting = waiting_times(stops, settings.speed)
    for n in range(stops.shape[1]):
        degrees = place.degrees(stops[:, n, :2])[:, ::-1].round(9)
        positions = np.column_stack((degrees, stops[:, n, 2].round(3))).tolist()
        items = _items(positions, waiting[:, n], readings[n], settings)
        yield FlightPlan(n + 1, positions[0][:2], settings.speed, items, fences)


def _items(
    positions: Sequence[Sequence[float]], waiting: Array, readings: int, settings: DeploymentConfig
) -> list[Item]:
    """Return the mission items of one UAV: take-off, waypoints with photos, return.

    `positions` are the stops (latitude, longitude, altitude [m]), [S, 3]; `waiting` is in s, [S].
    """
    frame = ABOVE_GROUND if settings.altitudes == "ground" else ABOVE_HOME
    items = [
        Item(TAKE_OFF, ABOVE_HOME, (0, 0, 0, None, *positions[1])),
        Item(SPEED, COMMAND_FRAME, (1, settings.speed, -1, 0, 0, 0, 0)),
    ]
    for k in range(1, BEFORE + readings + AFTER - 1):
        seconds = round(float(waiting[k]), 1)
        items.append(Item(WAYPOINT, frame, (seconds, 0, 0, None, *positions[k])))
        if BEFORE <= k < BEFORE + readings:
            items.append(Item(PHOTO, COMMAND_FRAME, (0, 0, 1, 0, 0, 0, 0)))
    return [*items, Item(RETURN, COMMAND_FRAME, (0, 0, 0, 0, 0, 0, 0))]


def team_stops(
    tracks: Sequence[Array], home: tuple[float, float], separation: float, top: float
) -> Array:
    """Return all stops of a team from take-off to landing, [S, N, 3] [m].

    A UAV with fewer readings than others flies home early and stays on the ground. `tracks` are the
    positions of readings [m], [readings, 3] each; x points east. UAV 1 takes off at `home` [m] and
    the others further east, `separation` [m] apart; so are the transit altitudes above `top` [m].
    """
    most = max(map(len, tracks))
    stops = []
    for n, track in enumerate(tracks):
        pad, level = (home[0] + separation * n, home[1]), top + separation * (n + 1)
        start, end = track[0, :2], track[-1, :2]
        out = [(*pad, 0.0), (*pad, level), (*start, level)]
        back = [(*end, level), (*pad, level), *[(*pad, 0.0)] * (most - len(track) + 1)]
        stops.append(np.concatenate((out, track, back)))
    return np.stack(stops, axis=1)


def waiting_times(stops: Array, speed: float) -> Array:
    """Return how long each UAV waits for the slowest UAV at each stop [s], [S, N]."""
    seconds = np.linalg.norm(np.diff(stops, axis=0), axis=-1) / speed
    waiting = seconds.max(axis=1, keepdims=True) - seconds
    return np.concatenate((np.zeros_like(waiting[:1]), waiting))


def home_metres(place: Place, home: tuple[float, float] | None) -> tuple[float, float]:
    """Return the take-off position (x, y) of UAV 1, from the place's lower left corner [m].

    `home` is (latitude, longitude) [degrees]; None stands for the corner. Raises ConfigError if
    home is too far from the map.
    """
    if home is None:
        return (0.0, 0.0)
    try:
        x, y = place.metres(np.array([home[::-1]]))[0].tolist()
    except ValueError:
        x = y = math.inf
    if (distance := math.hypot(x, y)) > _FARTHEST_HOME:
        raise ConfigError(
            f"deployment.home: [{home[0]:g}, {home[1]:g}] lies {distance / 1e3:.0f} km from the "
            "map; set it to [latitude, longitude] of a point near the map"
        )
    return (x, y)


def geofences(
    zones: NoFlyZones, place: Place, config: Config, origin: tuple[float, float]
) -> list[list[Degrees]]:
    """Return zones near a window, if closed at all altitudes, as polygons without holes.

    `origin` is the lower left corner of the window on the map [m].
    """
    size = config.environment.x_dim, config.environment.y_dim
    closed = [zone for zone in zones.zones if zone.floor <= 0 and math.isinf(zone.height)]
    parts = [part for zone in closed for part in polygons(zone, origin, size, _FENCED)]
    borders = [np.array(part.simplify(_FENCE_ERROR).exterior.coords)[:-1] for part in parts]
    return [place.degrees(border)[:, ::-1].round(9).tolist() for border in borders]


def write_plan(flight: FlightPlan, file: Path) -> None:
    """Write a plan file for QGroundControl."""
    # https://docs.qgroundcontrol.com/master/en/qgc-dev-guide/file_formats/plan.html
    relative = all(item.frame <= ABOVE_HOME for item in flight.items)
    mission = {
        "version": 2,
        # PX4 does not support altitudes above ground in missions.
        "firmwareType": _PX4 if relative else _ARDUPILOT,
        "vehicleType": _QUADROTOR,
        "globalPlanAltitudeMode": _ABOVE_HOME_MODE if relative else _ABOVE_GROUND_MODE,
        "cruiseSpeed": flight.speed,
        "hoverSpeed": flight.speed,
        "plannedHomePosition": [*flight.home, 0],  # the altitude above sea level is unknown
        "items": [_simple_item(item, number) for number, item in enumerate(flight.items, start=1)],
    }
    polygons = [{"inclusion": False, "polygon": ring, "version": 1} for ring in flight.fences]
    content = {
        "fileType": "Plan",
        "version": 1,
        "groundStation": "QGroundControl",
        "mission": mission,
        "geoFence": {"circles": [], "polygons": polygons, "version": 2},
        "rallyPoints": {"points": [], "version": 2},
    }
    write_json(file, content)


def _simple_item(item: Item, number: int) -> dict[str, Any]:
    altitude = {}
    if item.frame != COMMAND_FRAME:
        mode = _ABOVE_HOME_MODE if item.frame == ABOVE_HOME else _ABOVE_GROUND_MODE
        altitude = {"Altitude": item.params[6], "AltitudeMode": mode, "AMSLAltAboveTerrain": None}
    return {
        "type": "SimpleItem",
        "command": item.command,
        "frame": item.frame,
        "params": list(item.params),
        "doJumpId": number,
        "autoContinue": True,
        **altitude,
    }


def write_waypoint_list(flight: FlightPlan, file: Path) -> None:
    """Write QGC WPL 110 (https://mavlink.io/en/file_formats/); item 0 is home, as for ArduPilot."""
    first = Item(WAYPOINT, 0, (0, 0, 0, 0, *flight.home, 0))
    lines = ["QGC WPL 110"]
    for number, item in enumerate((first, *flight.items)):
        params = (f"{0 if value is None else value:.9f}" for value in item.params)
        fields = (number, int(number == 0), item.frame, item.command, *params, 1)
        lines.append("\t".join(map(str, fields)))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


WRITERS = {".plan": write_plan, ".waypoints": write_waypoint_list}
"""Writer for each file suffix."""
