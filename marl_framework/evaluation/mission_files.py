"""Mission files for ground stations: QGroundControl's plan, and MAVLink's list of waypoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.evaluation.flight_plans import (
    ABOVE_HOME,
    BEFORE,
    WAYPOINT,
    Approach,
    Item,
    closest_approach,
    mission_items,
    team_stops,
    waits,
)
from marl_framework.mission.no_fly_zones import NoFlyZones
from marl_framework.mission.terrains.geotiff import Array, Place
from marl_framework.runs.files import write_json

Fence = list[list[float]]
Paths = Sequence[Tensor]

_FARTHEST_HOME = 50e3  # [m]
_PX4, _ARDUPILOT = 12, 3  # MAV_AUTOPILOT
_QUADROTOR = 2  # MAV_TYPE
_ABOVE_HOME_MODE, _ABOVE_GROUND_MODE = 1, 4  # QGroundControl's AltMode


_FENCED = 1e3  # [m] around a window, where zones are written
_SMOOTH = 0.02  # [m] that a fence may be off


def write_missions(
    paths: Paths, place: Place, config: Config, folder: Path, fences: Sequence[Fence] = ()
) -> Approach | None:
    """Write `uav_N.plan` and `uav_N.waypoints` for each UAV; return how near two of them come.

    Args:
        paths: position of each reading of each UAV from the window's lower left corner [m],
            [readings, 3] each, on the CPU.
        place: of the window.
        config: its section `deployment` says home, speed and altitudes.
        folder: existing folder.
        fences: of the plans, see `geofence`.
    """
    settings = config.deployment
    stops = _stops(paths, place, config)
    waiting = waits(stops, settings.speed)
    for n in range(stops.shape[1]):
        degrees = place.degrees(stops[:, n, :2])
        items = mission_items(degrees, stops[:, n, 2], waiting[:, n], len(paths[n]), settings)
        name = f"uav_{n + 1}"
        pad = degrees[0][::-1].round(9).tolist()
        write_json(folder / f"{name}.plan", plan(items, pad, settings.speed, fences))
        (folder / f"{name}.waypoints").write_text(waypoint_list(items, pad), encoding="utf-8")
    return closest_approach(stops, settings.speed)


def _stops(paths: Paths, place: Place, config: Config) -> Array:
    """Return all stops of a team from take-off to landing, [S, N, 3] [m]."""
    settings, readings = config.deployment, [path.double().numpy() for path in paths]
    home = home_metres(place, settings.home)
    return team_stops(readings, home, settings.separation, config.geometry.altitudes[-1])


def ways_through_zones(
    zones: NoFlyZones, paths: Paths, place: Place, config: Config, origin: tuple[float, float]
) -> list[dict[str, Any]]:
    """Return which UAVs, by number from 1, touch a zone on their ways to the starts and back.

    Args:
        zones: of the map.
        paths: see `write_missions`.
        place: of the window.
        config: its section `deployment` says home and altitudes.
        origin: lower left corner of the window on the map [m].
    """
    stops = _stops(paths, place, config)
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for leg, (start, end) in enumerate(pairwise(stops)):
        for n in range(stops.shape[1]):
            where = describe_leg(leg, len(paths[n]))
            if (n, where) not in found and zones.touch(start[n], end[n], origin):
                found[n, where] = {"uav": n + 1, "where": where}
    return list(found.values())


def geofence(
    zones: NoFlyZones, place: Place, config: Config, origin: tuple[float, float]
) -> list[Fence]:
    """Return the zones near a window as polygons to stay out of, (latitude, longitude).

    Fences of autopilots reach from the ground to the sky, and so do the zones that become one;
    over others a mission may fly. Holes are closed.

    Args:
        zones: of the map.
        place: of the window.
        config: the missions.
        origin: lower left corner of the window on the map [m].
    """
    import shapely
    from shapely.affinity import translate

    area = config.environment
    near = shapely.box(-_FENCED, -_FENCED, area.x_dim + _FENCED, area.y_dim + _FENCED)
    fences = []
    for zone in zones.zones:
        if zone.floor > 0 or math.isfinite(zone.height):
            continue
        here = translate(zone.shape, -origin[0], -origin[1]).intersection(near)
        for part in shapely.get_parts(here.simplify(_SMOOTH)):
            if part.geom_type == "Polygon" and not part.is_empty:
                border = np.array(part.exterior.coords)[:-1]
                fences.append(place.degrees(border)[:, ::-1].round(9).tolist())
    return fences


def home_metres(place: Place, home: tuple[float, float] | None) -> tuple[float, float]:
    """Return where UAV 1 takes off, (x, y) from the lower left corner of the place [m].

    Args:
        place: of the window, or of the whole map.
        home: (latitude, longitude) [degrees]; None is the corner itself.

    Raises:
        ConfigError: it is far away.
    """
    if home is None:
        return (0.0, 0.0)
    try:
        x, y = place.metres(np.array([home[::-1]]))[0].tolist()
    except ValueError:
        x = y = float("inf")
    distance = (x**2 + y**2) ** 0.5
    if distance > _FARTHEST_HOME:
        raise ConfigError(
            f"deployment.home: [{home[0]:g}, {home[1]:g}] lies {distance / 1e3:.0f} km from the "
            "map; give the latitude, then the longitude of a place near it"
        )
    return (x, y)


def describe_leg(leg: int, readings: int) -> str:
    """Say where on the way a leg of `flight_plans.Approach` is."""
    if leg < BEFORE:
        return "on the way to their starts"
    move = leg - BEFORE + 1
    return f"on move {move}" if move < readings else "on the way home"


def plan(
    items: Sequence[Item], home: Sequence[float], speed: float, fences: Sequence[Fence] = ()
) -> dict[str, Any]:
    """Return a mission as QGroundControl's plan file has it, version 1.

    See https://docs.qgroundcontrol.com/master/en/qgc-dev-guide/file_formats/plan.html.

    Args:
        items: of the mission.
        home: (latitude, longitude) [degrees].
        speed: [m/s].
        fences: polygons to stay out of, (latitude, longitude) [degrees].
    """
    relative = all(item.frame <= ABOVE_HOME for item in items)
    return {
        "fileType": "Plan",
        "version": 1,
        "groundStation": "QGroundControl",
        "mission": {
            "version": 2,
            # PX4 knows no altitudes above ground in missions.
            "firmwareType": _PX4 if relative else _ARDUPILOT,
            "vehicleType": _QUADROTOR,
            "globalPlanAltitudeMode": _ABOVE_HOME_MODE if relative else _ABOVE_GROUND_MODE,
            "cruiseSpeed": speed,
            "hoverSpeed": speed,
            "plannedHomePosition": [*home, 0],  # the altitude above sea level is not known
            "items": [_simple_item(item, number) for number, item in enumerate(items, start=1)],
        },
        "geoFence": {
            "circles": [],
            "polygons": [{"inclusion": False, "polygon": ring, "version": 1} for ring in fences],
            "version": 2,
        },
        "rallyPoints": {"points": [], "version": 2},
    }


def _simple_item(item: Item, number: int) -> dict[str, Any]:
    altitude = {}
    if item.has_position:
        mode = _ABOVE_HOME_MODE if item.frame == ABOVE_HOME else _ABOVE_GROUND_MODE
        altitude = {
            "Altitude": item.params[6],
            "AltitudeMode": mode,
            "AMSLAltAboveTerrain": None,
        }
    return {
        "type": "SimpleItem",
        "command": item.command,
        "frame": item.frame,
        "params": list(item.params),
        "doJumpId": number,
        "autoContinue": True,
        **altitude,
    }


def waypoint_list(items: Sequence[Item], home: Sequence[float]) -> str:
    """Return a mission in MAVLink's text format, QGC WPL 110, with home as item 0.

    See https://mavlink.io/en/file_formats/. Item 0 is where ArduPilot and its ground stations
    look for home.

    Args:
        items: of the mission.
        home: (latitude, longitude) [degrees].
    """
    first = Item(WAYPOINT, 0, (0, 0, 0, 0, *home, 0))
    lines = ["QGC WPL 110"]
    for number, item in enumerate((first, *items)):
        params = (f"{0 if value is None else value:.9f}" for value in item.params)
        fields = (number, int(number == 0), item.frame, item.command, *params, 1)
        lines.append("\t".join(map(str, fields)))
    return "\n".join(lines) + "\n"
