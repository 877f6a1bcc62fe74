"""Files of a flight plan, for ground stations: missions and parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marl_framework.deployment.flight_plans import (
    ABOVE_HOME,
    COMMAND_FRAME,
    WAYPOINT,
    FlightPlan,
    Item,
    parameters,
)
from marl_framework.runs.files import write_json

_FIRMWARES = {"px4": 12, "ardupilot": 3}  # MAV_AUTOPILOT
_QUADROTOR = 2  # MAV_TYPE
_ALTITUDE_MODES = {"home": 1, "ground": 4}  # QGroundControl's AltMode
_INTEGER, _REAL = 6, 9  # MAV_PARAM_TYPE: INT32, REAL32


def write_files(flight: FlightPlan, folder: Path) -> None:
    """Write the mission and the parameters of one UAV to `uav_N.plan`, `.waypoints`, `.param`."""
    name = folder / f"uav_{flight.uav}"
    _write_plan(flight, name.with_suffix(".plan"))
    _write_waypoint_list(flight, name.with_suffix(".waypoints"))
    _write_parameters(flight, name)


def _write_plan(flight: FlightPlan, file: Path) -> None:
    """Write a plan for QGroundControl."""
    # https://docs.qgroundcontrol.com/master/en/qgc-dev-guide/file_formats/plan.html
    settings = flight.settings
    mission = {
        "version": 2,
        "firmwareType": _FIRMWARES[settings.autopilot],
        "vehicleType": _QUADROTOR,
        "globalPlanAltitudeMode": _ALTITUDE_MODES[settings.altitudes],
        "cruiseSpeed": settings.speed,
        "hoverSpeed": settings.speed,
        "plannedHomePosition": [*flight.home, 0],  # the altitude above sea level is unknown
        "items": [_simple_item(item, number) for number, item in enumerate(flight.items, start=1)],
    }
    fences = [(True, flight.border), *[(False, fence) for fence in flight.fences]]
    polygons = [{"inclusion": inside, "polygon": ring, "version": 1} for inside, ring in fences]
    # ArduPilot returns at the altitude of a rally point; PX4 lands at it.
    rally = 0 if settings.autopilot == "px4" else flight.return_altitude
    content = {
        "fileType": "Plan",
        "version": 1,
        "groundStation": "QGroundControl",
        "mission": mission,
        "geoFence": {"circles": [], "polygons": polygons, "version": 2},
        "rallyPoints": {"points": [[*flight.home, rally]], "version": 2},
    }
    write_json(file, content)


def _simple_item(item: Item, number: int) -> dict[str, Any]:
    altitude = {}
    if item.frame != COMMAND_FRAME:
        mode = _ALTITUDE_MODES["home" if item.frame == ABOVE_HOME else "ground"]
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


def _write_waypoint_list(flight: FlightPlan, file: Path) -> None:
    """Write QGC WPL 110 (https://mavlink.io/en/file_formats/); for ArduPilot, item 0 is home."""
    items = list(flight.items)
    if flight.settings.autopilot == "ardupilot":
        items.insert(0, Item(WAYPOINT, 0, (0, 0, 0, 0, *flight.home, 0)))
    lines = ["QGC WPL 110"]
    for number, item in enumerate(items):
        params = (f"{value:.9f}" for value in item.params)
        fields = (number, int(number == 0), item.frame, item.command, *params, 1)
        lines.append("\t".join(map(str, fields)))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_parameters(flight: FlightPlan, file: Path) -> None:
    """Write ArduPilot's parameters for Mission Planner and MAVProxy, PX4's for QGroundControl."""
    values = parameters(flight).items()
    suffix, lines = ".param", [f"{name},{value:g}" for name, value in values]
    if flight.settings.autopilot == "px4":
        suffix, lines = ".params", ["# Vehicle-Id\tComponent-Id\tName\tValue\tType"]
        for name, value in values:  # QGroundControl compares the number of the vehicle
            kind = _INTEGER if isinstance(value, int) else _REAL
            lines.append(f"{flight.uav}\t1\t{name}\t{value:g}\t{kind}")
    file.with_suffix(suffix).write_text("\n".join(lines) + "\n", encoding="utf-8")
