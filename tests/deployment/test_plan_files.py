"""Mission files: flown as the team flew, and readable by others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from pymavlink import mavparm, mavwp
from pymavlink.dialects.v20 import ardupilotmega as mavlink

from marl_framework.config.geography import Place
from marl_framework.config.mission import DeploymentConfig
from marl_framework.deployment.flight_plans import map_heading
from tests.deployment.flying import (
    INTO_UTM,
    corner,
    deploy,
    missions,
    plan,
    readings,
    simulated_seconds,
    tracks,
)

TAKE_OFF, SPEED = mavlink.MAV_CMD_NAV_TAKEOFF, mavlink.MAV_CMD_DO_CHANGE_SPEED
WAYPOINT, PHOTO = mavlink.MAV_CMD_NAV_WAYPOINT, mavlink.MAV_CMD_IMAGE_START_CAPTURE
GIMBAL, YAW = mavlink.MAV_CMD_DO_MOUNT_CONTROL, mavlink.MAV_CMD_CONDITION_YAW
RETURN = mavlink.MAV_CMD_NAV_RETURN_TO_LAUNCH
ABOVE_HOME, ABOVE_GROUND = (
    mavlink.MAV_FRAME_GLOBAL_RELATIVE_ALT,
    mavlink.MAV_FRAME_GLOBAL_TERRAIN_ALT,
)
PX4 = "deployment.autopilot=px4"


@pytest.fixture(scope="module")
def flown_by_px4(tmp_path_factory: pytest.TempPathFactory, utm: Path) -> Path:
    folder = tmp_path_factory.mktemp("px4")
    assert deploy(folder, utm, PX4, "deployment.separation=8", "deployment.climb_speed=2") == 0
    return folder


def positions(items: list[dict[str, Any]]) -> np.ndarray:
    """Easting, northing and altitude of the items that have a position."""
    flown = np.array([i["params"][4:] for i in items if i["command"] in (TAKE_OFF, WAYPOINT)])
    return np.column_stack((*INTO_UTM.transform(flown[:, 1], flown[:, 0]), flown[:, 2]))


def parameters(folder: Path, uav: int) -> dict[str, float]:
    """Read a parameter file as MAVProxy (ArduPilot) or QGroundControl (PX4) does."""
    if (folder / f"uav_{uav}.param").exists():
        found = mavparm.MAVParmDict()
        assert found.load(str(folder / f"uav_{uav}.param"))
        return dict(found)
    lines = (folder / f"uav_{uav}.params").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    assert {(row[0], row[1]) for row in rows} == {(str(uav), "1")}
    assert {(row[2], row[4]) for row in rows if row[4] != "9"} == {("RTL_CONE_ANG", "6")}
    return {row[2]: float(row[3]) for row in rows}


def test_a_plan_flies_the_readings_with_a_photo_at_each(flown: Path) -> None:
    for folder, mission in missions(flown):
        for uav in (1, 2, 3):
            items = plan(folder, uav)["mission"]["items"]
            taken = [items[k - 1] for k, item in enumerate(items) if item["command"] == PHOTO]
            expected = np.add(readings(folder, uav), [*corner(mission), 0])
            np.testing.assert_allclose(positions(taken), expected, atol=0.01)
            commands = [item["command"] for item in items]
            assert commands == [
                *(TAKE_OFF, SPEED, SPEED, SPEED, GIMBAL, YAW, WAYPOINT, WAYPOINT),
                *(WAYPOINT, PHOTO) * len(expected),
                *(WAYPOINT, WAYPOINT, RETURN),
            ]
            pad = np.add(corner(mission), (10 * (uav - 1), 0))
            np.testing.assert_allclose(positions(items)[0, :2], pad, atol=0.01)
            np.testing.assert_allclose(positions(items)[-1, :2], pad, atol=0.01)


def test_speeds_waits_radius_heading_and_camera_are_set(flown: Path, flown_by_px4: Path) -> None:
    folder, _ = missions(flown)[0]
    items = plan(folder, 1)["mission"]["items"]
    speeds = [item["params"][:3] for item in items if item["command"] == SPEED]
    kinds = [mavlink.SPEED_TYPE_GROUNDSPEED, mavlink.SPEED_TYPE_CLIMB_SPEED]
    kinds.append(mavlink.SPEED_TYPE_DESCENT_SPEED)
    assert speeds == [[kinds[0], 4, -1], [kinds[1], 2.5, -1], [kinds[2], 1.5, -1]]
    (yaw,) = [item["params"][:4] for item in items if item["command"] == YAW]
    assert yaw == [items[0]["params"][3], 0, 0, 0]
    # PX4 flies level at any speed that it is sent; it turns to the heading of its waypoints.
    on_px4 = plan(missions(flown_by_px4)[0][0], 1)["mission"]["items"]
    assert [i["params"][:2] for i in on_px4 if i["command"] == SPEED] == [[kinds[0], 3]]
    assert YAW not in [item["command"] for item in on_px4]
    for found in (items, on_px4):
        heading = found[0]["params"][3]
        assert heading == pytest.approx(1.91, abs=0.1)  # of grid north, west of the UTM meridian
        waypoints = [item["params"] for item in found if item["command"] == WAYPOINT]
        assert {tuple(params[1:4]) for params in waypoints} == {(0.5, 0, heading)}
        assert all(params[0] >= 1 and params[0] == int(params[0]) for params in waypoints)
        (camera,) = [item["params"] for item in found if item["command"] == GIMBAL]
        assert camera == [-90, 0, 0, 0, 0, 0, mavlink.MAV_MOUNT_MODE_MAVLINK_TARGETING]


def test_parameters_set_what_a_mission_cannot(flown: Path, flown_by_px4: Path) -> None:
    altitudes = []
    for uav in (1, 2, 3):
        folder, _ = missions(flown)[0]
        found = parameters(folder, uav)
        items = plan(folder, uav)["mission"]["items"]
        altitudes.append(found["RTL_ALT_M"])
        assert found["RTL_ALT_M"] == items[0]["params"][6] == items[-2]["params"][6]
        assert (found["WP_RADIUS_M"], found["WP_YAW_BEHAVIOR"]) == (0.5, 0)
        assert found["RTL_CONE_SLOPE"] == 0
        old = {"RTL_ALT_M": "RTL_ALT", "WP_SPD": "WPNAV_SPEED", "WP_RADIUS_M": "WPNAV_RADIUS"}
        assert all(found[name] == 100 * found[new] for new, name in old.items())  # [cm]
        (rally,) = plan(folder, uav)["rallyPoints"]["points"]
        assert rally == [*items[0]["params"][4:6], found["RTL_ALT_M"]]
        assert not {"TERRAIN_ENABLE", "RTL_ALT_TYPE"} & set(found)
    assert all(abs(a - b) >= 5 for a, b in itertools.combinations(altitudes, 2))
    folder, _ = missions(flown_by_px4)[0]
    first, second = (parameters(folder, uav) for uav in (1, 2))
    assert second["RTL_RETURN_ALT"] - first["RTL_RETURN_ALT"] == 8
    names = ("MPC_TKO_SPEED", "MPC_Z_V_AUTO_UP", "MPC_Z_V_AUTO_DN")
    assert [first[name] for name in names] == [2, 2, 1.5]
    assert first["RTL_CONE_ANG"] == 0
    # PX4 takes a rally point's altitude for that of the ground.
    assert [point[2] for point in plan(folder, 2)["rallyPoints"]["points"]] == [0]


def test_the_summary_has_the_duration_of_the_files(flown: Path) -> None:
    for folder, mission in missions(flown):
        assert mission["duration_s"] == max(mission["uav_durations_s"])
        for uav in (1, 2, 3):
            items = plan(folder, uav)["mission"]["items"]
            expected = flight_seconds(items, parameters(folder, uav))
            assert mission["uav_durations_s"][uav - 1] == pytest.approx(expected, rel=0.02)


def flight_seconds(items: list[dict[str, Any]], limits: dict[str, float]) -> float:
    """Simulate a mission from take-off to landing, at 0.5 m/s below 10 m."""
    speeds = {item["params"][0]: item["params"][1] for item in items if item["command"] == SPEED}
    settings = DeploymentConfig(speed=speeds[1], climb_speed=speeds[2], descent_speed=speeds[3])
    places = positions(items)
    low, pad = places[-1].copy(), places[0] * [1, 1, 0]
    low[2] = 10
    seconds = 10 / 0.5
    for start, end in itertools.pairwise([pad, *places, low]):
        if (length := np.linalg.norm(end - start)) > 0.1:
            assert length >= 1
            seconds += simulated_seconds(start, end, settings, limits["WP_ACC"])
            seconds += limits["WP_ACC"] / limits["WP_JERK"]
    return seconds + sum(item["params"][0] for item in items if item["command"] == WAYPOINT)


def test_the_outer_fence_contains_all_ways_and_pads(flown: Path) -> None:
    for folder, _ in missions(flown):
        plans = [plan(folder, uav) for uav in (1, 2, 3)]
        (fence,), *others = [found["geoFence"]["polygons"] for found in plans]
        assert all(other == [fence] for other in others)
        assert fence["inclusion"] is True
        corners = np.array(fence["polygon"])
        border = shapely.Polygon(np.column_stack(INTO_UTM.transform(corners[:, 1], corners[:, 0])))
        for found in plans:
            way = shapely.LineString(positions(found["mission"]["items"])[:, :2])
            assert border.contains(way.buffer(9.9))


@pytest.mark.parametrize(("east", "turn"), [(500000, 0), (691000, 1.913), (309000, -1.913)])
def test_the_heading_is_grid_north(east: float, turn: float) -> None:
    place = Place("EPSG:32632", (east, 5334870.0))
    assert (map_heading(place) + 180) % 360 - 180 == pytest.approx(turn, abs=0.02)


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
            assert (item["AltitudeMode"], item["frame"]) == (1, ABOVE_HOME)


@pytest.mark.parametrize("autopilot", ["ardupilot", "px4"])
def test_pymavlink_reads_the_same_mission_back(
    autopilot: str, flown: Path, flown_by_px4: Path
) -> None:
    for folder, _ in missions(flown if autopilot == "ardupilot" else flown_by_px4):
        for uav in (1, 2):
            items = plan(folder, uav)["mission"]["items"]
            loader = mavwp.MAVWPLoader()
            first = 1 if autopilot == "ardupilot" else 0  # PX4 takes item 0 for the take-off
            assert loader.load(str(folder / f"uav_{uav}.waypoints")) == len(items) + first
            if first:
                home = loader.wp(0)
                assert (home.frame, home.command) == (0, WAYPOINT)
                assert home.x == pytest.approx(items[0]["params"][4], abs=1e-8)
            assert [point.current for point in loader.wpoints] == [1] + [0] * (loader.count() - 1)
            for k, item in enumerate(items, start=first):
                point = loader.wp(k)
                assert (point.seq, point.autocontinue) == (k, 1)
                assert (point.command, point.frame) == (item["command"], item["frame"])
                flown_to = [point.param1, point.param2, point.param3, point.param4]
                flown_to += [point.x, point.y, point.z]
                np.testing.assert_allclose(flown_to, item["params"], atol=1e-8)


def test_home_and_altitudes_are_what_the_user_says(
    fly: Callable[..., int], utm: Path, tmp_path: Path
) -> None:
    home = (48.139, 11.571)
    place = (f"deployment.home={list(home)}", "deployment.pad_distance=8")
    assert fly(utm, *place, "deployment.altitudes=ground") == 0
    for folder, _ in missions(tmp_path):
        for uav in (1, 2):
            found = plan(folder, uav)["mission"]
            pad = positions(found["items"])[0, :2]
            x, y = INTO_UTM.transform(*home[::-1])
            np.testing.assert_allclose(pad, (x + 8 * (uav - 1), y), atol=0.01)
            assert found["plannedHomePosition"][:2] == found["items"][0]["params"][4:6]
            assert (found["firmwareType"], found["globalPlanAltitudeMode"]) == (3, 4)
            for item in found["items"]:
                if item["command"] == WAYPOINT:
                    assert (item["frame"], item["AltitudeMode"]) == (ABOVE_GROUND, 4)
            assert found["items"][0]["frame"] == ABOVE_HOME
            limits = parameters(folder, uav)
            assert (limits["TERRAIN_ENABLE"], limits["RTL_ALT_TYPE"]) == (1, 1)


def test_a_plan_names_its_autopilot(flown: Path, flown_by_px4: Path) -> None:
    for folder, firmware in ((flown, 3), (flown_by_px4, 12)):
        found = plan(missions(folder)[0][0], 1)["mission"]
        assert (found["firmwareType"], found["globalPlanAltitudeMode"]) == (firmware, 1)


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
