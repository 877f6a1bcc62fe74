"""Mission files: flown as the team flew, apart on the way, and readable by others."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymavlink import mavutil, mavwp

from marl_framework.evaluation.flight_plans import (
    AFTER,
    BEFORE,
    closest_approach,
    team_stops,
    waits,
)
from marl_framework.evaluation.mission_files import describe_leg
from tests.evaluation.test_georeferenced import (
    MAP,
    NORTH,
    WEST,
    Fly,
    bumps,
    flown,
    fly,
    missions,
    tracks,
    utm,
)

__all__ = ["flown", "fly", "utm"]  # fixtures
INTO_UTM = pyproj.Transformer.from_crs("EPSG:4326", "EPSG:32632", always_xy=True)
# MAVLink's numbers: https://mavlink.io/en/messages/common.html
TAKE_OFF, SPEED, WAYPOINT, PHOTO, RETURN = 22, 178, 16, 2000, 20


def positions(items: list[dict[str, Any]]) -> np.ndarray:
    """Easting, northing and altitude of the items that have a position."""
    flown = np.array([i["params"][4:] for i in items if i["command"] in (TAKE_OFF, WAYPOINT)])
    return np.column_stack((*INTO_UTM.transform(flown[:, 1], flown[:, 0]), flown[:, 2]))


def readings(folder: Path, mission: dict[str, Any], uav: int) -> np.ndarray:
    rows = np.genfromtxt(folder / "waypoints.csv", delimiter=",", skip_header=1)
    return rows[rows[:, 0] == uav, 2:] + [*mission["window_origin_m"], 0] + [WEST, NORTH - 130, 0]


def test_a_plan_flies_the_readings_with_a_photo_at_each(flown: Path) -> None:
    for folder, mission in missions(flown):
        for uav in (1, 2, 3):
            found = json.loads((folder / f"uav_{uav}.plan").read_text())
            items = found["mission"]["items"]
            taken = [items[k - 1] for k, item in enumerate(items) if item["command"] == PHOTO]
            expected = readings(folder, mission, uav)
            np.testing.assert_allclose(positions(taken), expected, atol=0.01)
            commands = [item["command"] for item in items]
            assert commands == [
                *(TAKE_OFF, SPEED, WAYPOINT, WAYPOINT),
                *(WAYPOINT, PHOTO) * len(expected),
                *(WAYPOINT, WAYPOINT, RETURN),
            ]
            assert items[1]["params"][:2] == [1, 4]
            corner = np.add(mission["window_origin_m"], (WEST + 5 * (uav - 1), NORTH - 130))
            np.testing.assert_allclose(positions(items)[0, :2], corner, atol=0.01)
            np.testing.assert_allclose(positions(items)[-1, :2], corner, atol=0.01)


def test_a_plan_has_the_fields_of_its_published_format(flown: Path) -> None:
    """docs.qgroundcontrol.com/master/en/qgc-dev-guide/file_formats/plan.html"""
    folder = missions(flown)[0][0]
    found = json.loads((folder / "uav_1.plan").read_text())
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
            assert item["frame"] == (3 if item["command"] == TAKE_OFF else 10)


def test_pymavlink_reads_the_same_mission_back(flown: Path) -> None:
    for folder, _ in missions(flown):
        for uav in (1, 2, 3):
            items = json.loads((folder / f"uav_{uav}.plan").read_text())["mission"]["items"]
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


def test_the_numbers_of_commands_are_those_of_mavlink() -> None:
    common = mavutil.mavlink
    assert (WAYPOINT, RETURN, TAKE_OFF, SPEED, PHOTO) == (
        common.MAV_CMD_NAV_WAYPOINT,
        common.MAV_CMD_NAV_RETURN_TO_LAUNCH,
        common.MAV_CMD_NAV_TAKEOFF,
        common.MAV_CMD_DO_CHANGE_SPEED,
        common.MAV_CMD_IMAGE_START_CAPTURE,
    )
    assert (common.MAV_FRAME_GLOBAL_RELATIVE_ALT, common.MAV_FRAME_GLOBAL_TERRAIN_ALT) == (3, 10)


def test_altitudes_above_home_are_flown_by_px4(fly: Fly, utm: Path, tmp_path: Path) -> None:
    assert fly(utm, "deployment.altitudes=home") == 0
    mission = json.loads((missions(tmp_path)[0][0] / "uav_1.plan").read_text())["mission"]
    assert {item["frame"] for item in mission["items"]} == {2, 3}
    assert (mission["firmwareType"], mission["globalPlanAltitudeMode"]) == (12, 1)


def test_a_home_is_where_the_user_says(fly: Fly, utm: Path, tmp_path: Path) -> None:
    home = (48.139, 11.571)
    assert fly(utm, f"deployment.home={list(home)}", "deployment.separation=8") == 0
    for folder, _ in missions(tmp_path):
        for uav in (1, 2):
            found = json.loads((folder / f"uav_{uav}.plan").read_text())["mission"]
            pad = positions(found["items"])[0, :2]
            x, y = INTO_UTM.transform(*home[::-1])
            np.testing.assert_allclose(pad, (x + 8 * (uav - 1), y), atol=0.01)
            assert found["plannedHomePosition"][:2] == found["items"][0]["params"][4:6]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("deployment.home=[11.571, 48.139]", "the latitude, then the longitude"),
        ("deployment.home=[148.1, 11.5]", "deployment.home"),
        ("deployment.speed=0", "deployment.speed"),
        ("deployment.separation=0", "deployment.separation"),
        ("deployment.altitudes=sea", "deployment.altitudes"),
    ],
)
def test_bad_settings_are_one_line_and_leave_nothing(
    setting: str,
    named: str,
    fly: Fly,
    utm: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fly(utm, setting) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert named in error
    assert not (tmp_path / "runs").exists()


def test_a_home_needs_a_map_with_coordinates(
    fly: Fly, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "map.npy", bumps())
    assert fly(tmp_path / "map.npy", "deployment.home=[48, 11]", f"{MAP}.resolution=1.0") == 2
    assert "has no coordinates; place it with deployment.origin" in capsys.readouterr().err


# Apart ------------------------------------------------------------------------------------

CELLS = st.lists(
    st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2, max_size=8, unique=True
)


@settings(deadline=None)
@given(
    starts=CELLS,
    ends=CELLS,
    home=st.tuples(st.floats(-300, 300), st.floats(-300, 300)),
    separation=st.floats(1, 20),
    speed=st.floats(0.5, 20),
)
def test_uavs_keep_apart_on_the_way_there_and_back(
    starts: list[tuple[int, int]],
    ends: list[tuple[int, int]],
    home: tuple[float, float],
    separation: float,
    speed: float,
) -> None:
    number = min(len(starts), len(ends))
    path = np.array([[(5.0 * x, 5.0 * y, 15.0) for x, y in at[:number]] for at in (starts, ends)])
    stops = team_stops(list(path.transpose(1, 0, 2)), home, separation, 15.0)
    for part in (stops[: BEFORE + 1], stops[-AFTER - 1 :]):
        nearest = closest_approach(part, speed)
        assert nearest is not None
        assert nearest.metres >= min(separation, 5.0) - 1e-6


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**16), speed=st.floats(0.5, 20))
def test_the_closest_approach_is_that_of_a_fine_simulation(seed: int, speed: float) -> None:
    stops = np.random.default_rng(seed).integers(0, 4, (3, 3, 3)) * 5.0
    distances = []
    for start, end in pairwise(stops):
        length = np.linalg.norm(end - start, axis=-1)
        for way in np.linspace(0, length.max(), 401):
            share = np.divide(way, length, out=np.ones(3), where=length > 0).clip(max=1)
            at = start + share[:, None] * (end - start)
            distances += [np.linalg.norm(at[a] - at[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    nearest = closest_approach(stops, speed)
    assert nearest is not None
    assert nearest.metres == pytest.approx(min(distances), abs=0.05)


def test_uavs_that_swap_places_meet() -> None:
    stops = np.array([[(0, 0, 5), (5, 0, 5)], [(5, 0, 5), (0, 0, 5)]], float)
    nearest = closest_approach(stops, 3.0)
    assert nearest is not None
    assert (nearest.metres, nearest.leg, nearest.uavs) == (0, 0, (1, 2))


@pytest.mark.parametrize(
    ("leg", "where"),
    [(2, "on the way to their starts"), (3, "on move 1"), (5, "on move 3"), (6, "on the way home")],
)
def test_a_leg_is_told_in_words(leg: int, where: str) -> None:
    readings = 4  # three moves
    assert len(team_stops([np.zeros((readings, 3))] * 2, (0, 0), 5, 15)) == BEFORE + 4 + AFTER
    assert describe_leg(leg, readings) == where


def test_who_reads_less_flies_home_at_once() -> None:
    paths = [
        np.array([(10.0 * n, 5.0 * k, 15.0) for k in range(number)])
        for n, number in ((1, 2), (2, 4))
    ]
    short, long = team_stops(paths, (0, 0), 5, 15).transpose(1, 0, 2).tolist()
    assert short[BEFORE : BEFORE + 2] == paths[0].tolist()
    assert short[BEFORE + 2 :] == [[10, 5, 20], [0, 0, 20], *[[0, 0, 0]] * 3]
    assert long[BEFORE : BEFORE + 4] == paths[1].tolist()
    assert long[BEFORE + 4 :] == [[20, 15, 25], [5, 0, 25], [5, 0, 0]]


def test_a_uav_that_can_pay_for_no_more_moves_makes_no_more_photos(
    fly: Fly, utm: Path, tmp_path: Path
) -> None:
    cost = "experiment.constraints.cost"
    limits = (f"{cost}.limit=[12, 60]", "experiment.missions.n_agents=4")
    assert fly(utm, *limits) == 0
    taken = set()
    for folder, mission in missions(tmp_path):
        for uav in range(1, 5):
            items = json.loads((folder / f"uav_{uav}.plan").read_text())["mission"]["items"]
            photos = sum(item["command"] == PHOTO for item in items)
            assert photos == len(readings(folder, mission, uav))
            assert photos == tracks(folder)[uav - 1]["properties"]["readings"]
            taken.add(photos)
    assert taken == {3, 5}  # 5 m a move


def test_everyone_waits_for_the_slowest() -> None:
    stops = np.array([[(0, 0, 5), (9, 0, 5)], [(5, 0, 5), (9, 0, 15)]], float)
    assert waits(stops, 2.5).tolist() == [[0, 0], [2, 0]]


def test_a_deployment_warns_of_uavs_that_come_close(
    fly: Fly, utm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crowded = ("experiment.policy=random", "experiment.missions.n_agents=8")
    small = ("environment.x_dim=10", "environment.y_dim=15")
    assert fly(utm, *crowded, *small) == 0
    found = [mission["closest_approach"]["metres"] for _, mission in missions(tmp_path)]
    assert min(found) < 2.5
    assert capsys.readouterr().out.count("of each other") == sum(m < 2.5 for m in found)
