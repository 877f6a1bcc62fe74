"""Mission files for ground stations, one writer for each format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marl_framework.deployment import flight_plans as plans
from marl_framework.deployment.flight_plans import FlightPlan, Item
from marl_framework.runs.files import write_json

_PX4, _ARDUPILOT = 12, 3  # MAV_AUTOPILOT
_QUADROTOR = 2  # MAV_TYPE
_ABOVE_HOME_MODE, _ABOVE_GROUND_MODE = 1, 4  # QGroundControl's AltMode


def write_plan(flight: FlightPlan, file: Path) -> None:
    """Write QGroundControl's plan file, version 1.

    See https://docs.qgroundcontrol.com/master/en/qgc-dev-guide/file_formats/plan.html.
    """
    relative = all(item.frame <= plans.ABOVE_HOME for item in flight.items)
    mission = {
        "version": 2,
        # PX4 supports no altitudes above ground in missions.
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
    if item.frame != plans.COMMAND_FRAME:
        mode = _ABOVE_HOME_MODE if item.frame == plans.ABOVE_HOME else _ABOVE_GROUND_MODE
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
    """Write MAVLink's text format, QGC WPL 110.

    See https://mavlink.io/en/file_formats/. ArduPilot and its ground stations expect home as
    item 0.
    """
    first = Item(plans.WAYPOINT, 0, (0, 0, 0, 0, *flight.home, 0))
    lines = ["QGC WPL 110"]
    for number, item in enumerate((first, *flight.items)):
        params = (f"{0 if value is None else value:.9f}" for value in item.params)
        fields = (number, int(number == 0), item.frame, item.command, *params, 1)
        lines.append("\t".join(map(str, fields)))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


WRITERS = {".plan": write_plan, ".waypoints": write_waypoint_list}
"""Writer of each format, by the suffix of its files."""
