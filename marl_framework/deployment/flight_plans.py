"""Flight plans: the mission, fences and parameters of each UAV of a team."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Place
from marl_framework.config.mission import DeploymentConfig
from marl_framework.config.model import Config
from marl_framework.deployment.schedule import (
    AFTER,
    BEFORE,
    JERK,
    Array,
    Schedule,
    transit_altitude,
)
from marl_framework.evaluation.outlines import polygons
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.no_fly_zones import NoFlyZones

Degrees = list[float]  # (latitude, longitude) in WGS 84

# MAV_CMD and MAV_FRAME of MAVLink's common message set.
WAYPOINT, RETURN, TAKE_OFF, YAW, SPEED, GIMBAL, PHOTO = 16, 20, 22, 115, 178, 205, 2000
COMMAND_FRAME, ABOVE_HOME, ABOVE_GROUND = 2, 3, 10
_GROUND_SPEED, _CLIMB_SPEED, _DESCENT_SPEED = 1, 2, 3  # SPEED_TYPE
_DOWN, _POINTING = -90, 2  # pitch [degrees] and MAV_MOUNT_MODE of the camera
_FARTHEST_HOME = 50e3  # [m]
_FENCED = 1e3  # margin around a window and the pads [m]
_FENCE_ERROR = 0.02  # [m]
_BORDER = 10.0  # margin of the outer fence around all positions [m]


class Item(NamedTuple):
    """Item of a MAVLink mission."""

    command: int
    frame: int
    params: tuple[float, ...]
    """Seven parameters; the last three are (latitude, longitude, altitude)."""


class FlightPlan(NamedTuple):
    """Flight of one UAV from take-off to landing, with fences."""

    uav: int
    """Number of the UAV, from 1."""
    home: Degrees
    return_altitude: float
    """Altitude of transit and return above home [m]; it differs between the UAVs."""
    settings: DeploymentConfig
    items: Sequence[Item]
    border: Sequence[Degrees] = ()
    """Polygon that the UAV must not leave."""
    fences: Sequence[Sequence[Degrees]] = ()
    """Polygons that the UAV must not enter."""


def flight_plans(
    schedule: Schedule,
    place: Place,
    settings: DeploymentConfig,
    fences: Sequence[Sequence[Degrees]] = (),
) -> Iterator[FlightPlan]:
    """Yield the plan of each UAV."""
    stops, heading = schedule.stops, map_heading(place)
    border = outer_fence(stops, place)
    for n, readings in enumerate(schedule.readings):
        degrees = place.degrees(stops[:, n, :2])[:, ::-1].round(9)
        positions = np.column_stack((degrees, stops[:, n, 2].round(3))).tolist()
        items = _items(positions, schedule.waits[:, n], readings, heading, settings)
        level = positions[1][2]
        yield FlightPlan(n + 1, positions[0][:2], level, settings, items, border, fences)


def open_plan(environment: MissionEnvironment, place: Place, uav: int) -> FlightPlan:
    """Return the plan of UAV `uav`, from 0, without items: it may fly anywhere in the area.

    `place` is the location of the area. Raises ConfigError if altitudes do not count from home, or
    if a pad of the team is closer to the area than `deployment.separation`.
    """
    config, lattice = environment.config, environment.lattice
    settings, top = config.deployment, config.geometry.altitudes[-1]
    if settings.altitudes != "home":
        raise ConfigError("deployment.altitudes: not supported in flight; set it to home")
    if settings.acceptance_radius >= (spacing := lattice.spacing):  # at the next place at once
        raise ConfigError(
            f"deployment.acceptance_radius: {settings.acceptance_radius:g} m is not below "
            f"experiment.constraints.spacing {spacing:g} m; lower it"
        )
    x, y = home_metres(place, settings.home)
    last = lattice.metres(torch.tensor(lattice.shape) - 1)[:2].tolist()
    pads = [(x + settings.pad_distance * n, y) for n in range(environment.n_agents)]
    inside = np.clip(pads, 0, last)
    if np.linalg.norm(inside - pads, axis=-1).min() < settings.separation:
        raise ConfigError(
            f"deployment.home: UAVs take off in the area or closer than {settings.separation:g} m "
            "to it; set home to a place further away"
        )
    stops = np.array([pads[uav], (0, 0), last, (last[0], 0), (0, last[1])])
    home = place.degrees(stops[:1])[0, ::-1].tolist()
    zones = environment.zones
    fences = [] if zones is None else geofences(zones, place, config, (0.0, 0.0), (x, y))
    level = transit_altitude(uav, top, settings)
    return FlightPlan(uav + 1, home, level, settings, (), outer_fence(stops, place), fences)


def _items(
    positions: Sequence[Sequence[float]],
    waits: Array,
    readings: int,
    heading: float,
    settings: DeploymentConfig,
) -> list[Item]:
    """Return the mission items of one UAV: take-off, waypoints with photos, return.

    `positions` are the stops (latitude, longitude, altitude [m]), [S, 3]; `waits` are in s, [S].
    """
    frame = ABOVE_GROUND if settings.altitudes == "ground" else ABOVE_HOME
    items = [Item(TAKE_OFF, ABOVE_HOME, (0, 0, 0, heading, *positions[1]))]
    speeds = {_GROUND_SPEED: settings.speed}
    if settings.autopilot == "ardupilot":
        # PX4 would fly level at the last of these; its vertical speeds are parameters.
        speeds |= {_CLIMB_SPEED: settings.climb_speed, _DESCENT_SPEED: settings.descent_speed}
    items += [_command(SPEED, kind, speed, -1) for kind, speed in speeds.items()]
    items.append(_command(GIMBAL, _DOWN, 0, 0, 0, 0, 0, _POINTING))
    if settings.autopilot == "ardupilot":  # it ignores the heading of waypoints
        items.append(_command(YAW, heading))
    for k in range(1, BEFORE + readings + AFTER - 1):
        wait = (float(waits[k]), settings.acceptance_radius, 0, heading)
        items.append(Item(WAYPOINT, frame, (*wait, *positions[k])))
        if BEFORE <= k < BEFORE + readings:
            items.append(_command(PHOTO, 0, 0, 1))
    return [*items, _command(RETURN)]


def _command(command: int, *params: float) -> Item:
    """Return an item without a position; missing parameters are 0."""
    return Item(command, COMMAND_FRAME, (*params, *[0] * (7 - len(params))))


def parameters(flight: FlightPlan) -> Mapping[str, float]:
    """Return the autopilot's parameters for a flight, which a mission cannot contain.

    ArduPilot gets its names since 4.7, in m, and the former ones, in cm.
    """
    settings, level = flight.settings, flight.return_altitude
    if settings.autopilot == "px4":
        return {
            "RTL_RETURN_ALT": level,
            "RTL_CONE_ANG": 0,  # climbs to that altitude close to home, too
            "NAV_ACC_RAD": settings.acceptance_radius,
            "NAV_MC_ALT_RAD": settings.acceptance_radius,
            "MPC_XY_CRUISE": settings.speed,
            "MPC_TKO_SPEED": settings.climb_speed,
            "MPC_Z_V_AUTO_UP": settings.climb_speed,
            "MPC_Z_V_AUTO_DN": settings.descent_speed,
            "MPC_ACC_HOR": settings.acceleration,
            "MPC_ACC_UP_MAX": settings.acceleration,
            "MPC_ACC_DOWN_MAX": settings.acceleration,
            "MPC_JERK_AUTO": JERK,
        }
    metres = {
        ("RTL_ALT_M", "RTL_ALT"): level,
        ("WP_RADIUS_M", "WPNAV_RADIUS"): settings.acceptance_radius,
        ("WP_SPD", "WPNAV_SPEED"): settings.speed,
        ("WP_SPD_UP", "WPNAV_SPEED_UP"): settings.climb_speed,
        ("WP_SPD_DN", "WPNAV_SPEED_DN"): settings.descent_speed,
        ("WP_ACC", "WPNAV_ACCEL"): settings.acceleration,
        ("WP_ACC_Z", "WPNAV_ACCEL_Z"): settings.acceleration,
    }
    values = {new: value for (new, _), value in metres.items()}
    values |= {old: round(100 * value) for (_, old), value in metres.items()}
    values |= {"WP_JERK": JERK, "WPNAV_JERK": JERK, "WP_YAW_BEHAVIOR": 0}  # keeps its heading
    values["RTL_CONE_SLOPE"] = 0  # climbs to its return altitude close to home, too
    if settings.altitudes == "ground":
        values |= {"TERRAIN_ENABLE": 1, "RTL_ALT_TYPE": 1}
    return values


def map_heading(place: Place) -> float:
    """Return the direction of the map's y axis, clockwise from north [degrees, 0 to 360]."""
    (west, south), (east, north) = place.degrees(np.array([[0.0, 0.0], [0.0, 100.0]]))
    turn = (east - west + 180) % 360 - 180
    along = turn * math.cos(math.radians(south))
    return round(math.degrees(math.atan2(along, north - south)), 2) % 360


def outer_fence(stops: Array, place: Place) -> list[Degrees]:
    """Return a polygon around all `stops` [m], [S, N, 3], with a margin."""
    import shapely

    hull = shapely.MultiPoint(stops[..., :2].reshape(-1, 2)).convex_hull
    border = hull.buffer(_BORDER, cap_style="square", join_style="mitre")
    corners = np.array(border.exterior.coords)[:-1]
    found: list[Degrees] = place.degrees(corners)[:, ::-1].round(9).tolist()
    return found


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
    zones: NoFlyZones,
    place: Place,
    config: Config,
    origin: tuple[float, float],
    home: tuple[float, float],
) -> list[list[Degrees]]:
    """Return zones near a window or the pads, if closed at all altitudes, without holes.

    `place` is the location of the window and `origin` its lower left corner on the map [m]. UAV 1
    takes off at `home`, in metres from this corner.
    """
    size, settings = (config.environment.x_dim, config.environment.y_dim), config.deployment
    pads = settings.pad_distance * config.missions.most_agents
    margin = _FENCED + math.hypot(*home) + pads
    closed = [zone for zone in zones.zones if zone.floor <= 0 and math.isinf(zone.height)]
    found = [part for zone in closed for part in polygons(zone, origin, size, margin)]
    parts = [part for polygon in found for part in without_holes(polygon.simplify(_FENCE_ERROR))]
    borders = [np.array(part.exterior.coords)[:-1] for part in parts]
    return [place.degrees(border)[:, ::-1].round(9).tolist() for border in borders]


def without_holes(polygon: Any) -> list[Any]:
    """Cut a shapely polygon into polygons without holes, because a fence is a single ring."""
    import shapely

    if not polygon.interiors:
        return [polygon]
    west, south, east, north = polygon.bounds
    middle = polygon.interiors[0].centroid.x
    halves = shapely.box(west, south, middle, north), shapely.box(middle, south, east, north)
    return [
        piece
        for part in shapely.get_parts([polygon & half for half in halves])
        if part.geom_type == "Polygon"
        for piece in without_holes(part)
    ]
