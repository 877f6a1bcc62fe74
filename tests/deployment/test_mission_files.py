"""Mission files: flown as the team flew, and readable by others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pymavlink import mavwp
from pymavlink.dialects.v20 import common as mavlink

from tests.deployment.flying import INTO_UTM, corner, missions, plan, readings, tracks

TAKE_OFF, SPEED = mavlink.MAV_CMD_NAV_TAKEOFF, mavlink.MAV_CMD_DO_CHANGE_SPEED
WAYPOINT, PHOTO = mavlink.MAV_CMD_NAV_WAYPOINT, mavlink.MAV_CMD_IMAGE_START_CAPTURE
RETURN = mavlink.MAV_CMD_NAV_RETURN_TO_LAUNCH
ABOVE_HOME, ABOVE_GROUND = (
    mavlink.MAV_FRAME_GLOBAL_RELATIVE_ALT,
    mavlink.MAV_FRAME_GLOBAL_TERRAIN_ALT,
)


def positions(items: list[dict[str, Any]]) -> np.ndarray:
    """Easting, northing and altitude of the items that have a position."""
    flown = np.array([i["params"][4:] for i in items if i["command"] in (TAKE_OFF, WAYPOINT)])
    return np.column_stack((*INTO_UTM.transform(flown[:, 1], flown[:, 0]), flown[:, 2]))


def test_a_plan_flies_the_readings_with_a_photo_at_each(flown: Path) -> None:
    for folder, mission in missions(flown):
        for uav in (1, 2, 3):
            items = plan(folder, uav)["mission"]["items"]
            taken = [items[k - 1] for k, item in enumerate(items) if item["command"] == PHOTO]
            expected = np.add(readings(folder, uav), [*corner(mission), 0])
            np.testing.assert_allclose(positions(taken), expected, atol=0.01)
            commands = [item["command"] for item in items]
            assert commands == [
                *(TAKE_OFF, SPEED, WAYPOINT, WAYPOINT),
                *(WAYPOINT, PHOTO) * len(expected),
                *(WAYPOINT, WAYPOINT, RETURN),
            ]
            assert items[1]["params"][:2] == [1, 4]
            pad = np.add(corner(mission), (5 * (uav - 1), 0))
            np.testing.assert_allclose(positions(items)[0, :2], pad, atol=0.01)
            np.testing.assert_allclose(positions(items)[-1, :2], pad, atol=0.01)


def test_a_plan_has_the_fields_of_its_published_format(flown: Path) -> None:
    """docs.qgroundcontrol.com/master/en/qgc-dev-guide/file_formats/plan.html"""
    found = plan(missions(flown)[0][0], 1)
    assert (found["fileType"], found["version"]) == ("Plan", 1)
    assert set(found) == {
        *("fileType", "version", "groundStation", "mission", "geoFence", "rallyPoints")
    }
    mission = found["mission"]
    assert mission["version"] == 2
    assert set(mission) == {
        *("version", "firmwareType", "globalPlanAltitudeMode", "cruiseSpeed", "hoverSpeed"),
        *("vehicleType", "plannedHomePosition", "items"),
    }
    assert len(mission["plannedHomePosition"]) == 3
    for number, item in enumerate(mission["items"], start=1):
        assert item["type"] == "SimpleItem"
        assert item["doJumpId"] == number
        assert item["autoContinue"] is True
        assert len(item["params"]) == 7
        if item["command"] in (TAKE_OFF, WAYPOINT):
            assert item["Altitude"] == item["params"][6]
            assert item["AltitudeMode"] == (1 if item["command"] == TAKE_OFF else 4)
            frame = ABOVE_HOME if item["command"] == TAKE_OFF else ABOVE_GROUND
            assert item["frame"] == frame


def test_pymavlink_reads_the_same_mission_back(flown: Path) -> None:
    for folder, _ in missions(flown):
        for uav in (1, 2, 3):
            items = plan(folder, uav)["mission"]["items"]
            loader = mavwp.MAVWPLoader()
            assert loader.load(str(folder / f"uav_{uav}.waypoints")) == len(items) + 1
            home = loader.wp(0)
            assert (home.frame, home.command, home.current) == (0, WAYPOINT, 1)
            assert home.x == pytest.approx(items[0]["params"][4], abs=1e-8)
            for k, item in enumerate(items, start=1):
                point = loader.wp(k)
                assert (point.seq, point.autocontinue) == (k, 1)
                assert (point.command, point.frame) == (item["command"], item["frame"])
                flown = [point.param1, point.param2, point.param3, point.param4]
                flown += [point.x, point.y, point.z]
                expected = [0 if value is None else value for value in item["params"]]
                np.testing.assert_allclose(flown, expected, atol=1e-8)


def test_home_and_altitudes_are_what_the_user_says(
    fly: Callable[..., int], utm: Path, tmp_path: Path
) -> None:
    home = (48.139, 11.571)
    place = (f"deployment.home={list(home)}", "deployment.separation=8")
    assert fly(utm, *place, "deployment.altitudes=home") == 0
    for folder, _ in missions(tmp_path):
        for uav in (1, 2):
            found = plan(folder, uav)["mission"]
            pad = positions(found["items"])[0, :2]
            x, y = INTO_UTM.transform(*home[::-1])
            np.testing.assert_allclose(pad, (x + 8 * (uav - 1), y), atol=0.01)
            assert found["plannedHomePosition"][:2] == found["items"][0]["params"][4:6]
            # PX4 flies altitudes above home.
            assert {item["frame"] for item in found["items"]} == {2, 3}
            assert (found["firmwareType"], found["globalPlanAltitudeMode"]) == (12, 1)


def test_a_uav_that_can_pay_for_no_more_moves_makes_no_more_photos(
    fly: Callable[..., int], utm: Path, tmp_path: Path
) -> None:
    limits = ("experiment.constraints.cost.limit=[12, 60]", "experiment.missions.n_agents=4")
    assert fly(utm, *limits) == 0
    taken = set()
    for folder, _ in missions(tmp_path):
        for uav in range(1, 5):
            items = plan(folder, uav)["mission"]["items"]
            photos = sum(item["command"] == PHOTO for item in items)
            assert photos == len(readings(folder, uav))
            assert photos == tracks(folder)[uav - 1]["properties"]["readings"]
            taken.add(photos)
    assert taken == {3, 5}  # 5 m a move
