"""Vehicles carry out commands and report their state, with an autopilot as the other side."""

from __future__ import annotations

import itertools
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import shapely

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import place_at
from marl_framework.deployment.flight_plans import map_heading, open_plan
from marl_framework.flying.mavsdk_vehicle import MavsdkVehicle
from marl_framework.flying.solo import WallClock
from marl_framework.mission.environment import MissionEnvironment
from tests.flying.autopilot import ATTITUDE, MODES, TICK, Autopilot, Kind
from tests.flying.processes import free_port, wait_for
from tests.small import small_config
from tests.soaking import in_soak

pytest.importorskip("mavsdk")
UAV, ORIGIN, HOME = 1, (48.0, 11.0), (47.9998, 10.9998)
FIRST, NEXT = (1, 1, 1), (2, 1, 0)
Fly = Callable[..., tuple[MavsdkVehicle, Autopilot]]


def environment_with(**deployment: Any) -> MissionEnvironment:
    settings = {"origin": ORIGIN, "home": HOME, **deployment}
    return MissionEnvironment(small_config(deployment=settings), 1, "cpu", "test")


@pytest.fixture
def fly() -> Iterator[Fly]:
    """Return a function that connects a vehicle with an autopilot."""
    with ExitStack() as stack:

        def connect(
            kind: Kind, said: str | None = None, moved: float = 0.0, **options: Any
        ) -> tuple[MavsdkVehicle, Autopilot]:
            environment = environment_with(autopilot=said or kind)
            place, port = place_at(*ORIGIN), free_port(socket.SOCK_DGRAM)
            plan = open_plan(environment, place, UAV)
            x, y = place.metres(np.array([plan.home[::-1]]))[0].tolist()
            autopilot = Autopilot(port, kind, place, (x + moved, y), **options)
            autopilot.start()
            stack.callback(autopilot.stop)
            url = f"udpin://127.0.0.1:{port}"
            clock = WallClock()
            vehicle = MavsdkVehicle(url, plan, environment, place, clock, patience=3.0)
            stack.callback(lambda: vehicle.close())
            wait_for(lambda: vehicle.status().position is not None)
            return vehicle, autopilot

        yield connect


KINDS = pytest.mark.parametrize("kind", ["px4", *in_soak("ardupilot")])


def near(autopilot: Autopilot, metres: tuple[float, float, float], error: float = 0.5) -> bool:
    return math.dist(autopilot.at, metres) <= error


def close(vehicle: MavsdkVehicle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a vehicle before the end of the test."""
    vehicle.close()
    monkeypatch.setattr(vehicle, "close", lambda: None)


@KINDS
def test_a_vehicle_flies_its_places_and_returns(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    wait_for(lambda: vehicle.status().landed)
    wait_for(lambda: vehicle.status().battery == pytest.approx(0.8))
    assert not vehicle.arrived()

    vehicle.take_off(FIRST)
    wait_for(vehicle.arrived)
    assert near(autopilot, (5.0, 5.0, 10.0))
    assert not vehicle.status().landed
    vehicle.go_to(NEXT)
    assert not vehicle.arrived()
    wait_for(vehicle.arrived)
    assert near(autopilot, (10.0, 5.0, 5.0))
    position = vehicle.status().position
    assert position == pytest.approx((10.0, 5.0, 5.0), abs=0.1)
    roll, pitch, yaw = np.degrees(ATTITUDE)
    yaw -= map_heading(place_at(*ORIGIN))
    assert vehicle.status().attitude == pytest.approx((roll, pitch, yaw), abs=0.01)
    assert time.time() - vehicle.status().time < 5

    vehicle.return_home()
    assert not vehicle.arrived()
    wait_for(lambda: vehicle.status().landed)
    assert vehicle.status().controlled
    assert near(autopilot, tuple(autopilot.home))

    # Far from home and goal, it is at the altitude of UAV 2: the highest place and two separations.
    level = 15.0 + 2 * 5.0
    track = np.array(autopilot.track)
    assert track[:, 2].max() == pytest.approx(level, abs=0.1)
    pads = [np.hypot(*(track[:, :2] - point).T) for point in (autopilot.home[:2], (5, 5), (10, 5))]
    away = np.minimum.reduce(pads) > 6.0
    assert away.sum() > 10
    assert track[away, 2] == pytest.approx(level, abs=0.6)


@KINDS
def test_parameters_and_fence_arrive_before_take_off(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    params = autopilot.params
    if kind == "px4":  # which uses a new value a moment later
        assert params["MIS_TAKEOFF_ALT"] == pytest.approx(25.0)
    vehicle.take_off(FIRST)
    wait_for(lambda: autopilot.armed)
    level = {"px4": params.get("RTL_RETURN_ALT"), "ardupilot": params.get("RTL_ALT_M")}[kind]
    assert level == pytest.approx(25.0)
    assert params[{"px4": "RTL_CONE_ANG", "ardupilot": "RTL_CONE_SLOPE"}[kind]] == 0
    corners = np.array([[item.y, item.x] for item in autopilot.fence]) / 1e7
    fence = shapely.Polygon(place_at(*ORIGIN).metres(corners))
    assert {item.command for item in autopilot.fence} == {5001}  # inclusion
    for point in [(0, 0), (0, 30), (30, 0), (30, 30), autopilot.home[:2]]:
        assert fence.contains(shapely.Point(point))
        assert 9.9 < fence.exterior.distance(shapely.Point(point)) < 15


@KINDS
def test_a_vehicle_holds(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    vehicle.take_off(FIRST)
    wait_for(vehicle.arrived)
    autopilot.pace = 4.0
    vehicle.go_to((6, 6, 1))
    wait_for(lambda: autopilot.at[0] > 8)
    commands = len(autopilot.commands)
    vehicle.hold()
    wait_for(lambda: len(autopilot.commands) > commands)
    wait_for(lambda: not autopilot.speed.any())
    assert autopilot.at[0] < 25
    assert not vehicle.arrived()
    assert vehicle.status().controlled


@pytest.mark.soak
@KINDS
def test_refused_commands_are_repeated(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    autopilot.refusals = {"arm": 1, "takeoff": 1, "goto": 2, "mode": 1}
    vehicle.take_off(FIRST)
    wait_for(vehicle.arrived)
    assert set(autopilot.refusals.values()) == {0}


@pytest.mark.soak
@KINDS
def test_a_newer_command_replaces_the_take_off(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    vehicle.take_off((6, 6, 1))
    wait_for(lambda: autopilot.at[2] > 5)
    vehicle.return_home()
    wait_for(lambda: vehicle.status().landed)
    assert math.dist(autopilot.at, autopilot.home) < 0.1
    assert np.array(autopilot.track)[:, 1].max() < 0  # it never came to the area


@pytest.mark.soak
@KINDS
def test_a_vehicle_that_held_goes_on_to_its_start(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    autopilot.pace = 15.0
    vehicle.take_off(FIRST)
    wait_for(lambda: autopilot.at[2] > 10)
    vehicle.hold()
    wait_for(lambda: not autopilot.speed.any())
    autopilot.pace = 30.0
    vehicle.take_off(FIRST)
    wait_for(vehicle.arrived)
    assert near(autopilot, (5.0, 5.0, 10.0))
    assert autopilot.commands.count("takeoff") == 1


def refused(fly: Fly, kind: Kind) -> tuple[MavsdkVehicle, Autopilot]:
    """Return a vehicle on the ground whose autopilot has refused to arm once."""
    vehicle, autopilot = fly(kind)
    wait_for(lambda: vehicle.status().landed)
    autopilot.refusals = {"arm": 1}
    vehicle.take_off(FIRST)
    wait_for(lambda: autopilot.refusals == {"arm": 0})
    return vehicle, autopilot


@KINDS
def test_a_vehicle_on_the_ground_does_not_take_off_after_the_end(
    monkeypatch: pytest.MonkeyPatch, fly: Fly, kind: Kind
) -> None:
    vehicle, autopilot = refused(fly, kind)
    close(vehicle, monkeypatch)
    assert "arm" not in autopilot.commands


@KINDS
def test_a_return_on_the_ground_cancels_the_take_off(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = refused(fly, kind)
    vehicle.return_home()
    ticks = len(autopilot.track) + round(1.5 / TICK)  # the take-off would be repeated after 1 s
    wait_for(lambda: len(autopilot.track) > ticks)
    assert not {"arm", "mode"} & set(autopilot.commands)


@KINDS
def test_an_abort_while_it_arms_cancels_the_take_off(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    wait_for(lambda: vehicle.status().landed)
    autopilot.arms.clear()
    vehicle.take_off(FIRST)
    wait_for(lambda: autopilot.arming)
    vehicle.return_home()
    autopilot.arms.set()
    wait_for(lambda: "mode" in autopilot.commands)
    assert "takeoff" not in autopilot.commands


@KINDS
def test_a_vehicle_that_held_before_lift_off_takes_off(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    autopilot.refusals = {"takeoff": 1000}
    vehicle.take_off(FIRST)
    wait_for(lambda: autopilot.armed and not vehicle.status().landed)
    vehicle.hold()
    wait_for(lambda: autopilot.mode in ("HOLD", "GUIDED"))
    autopilot.refusals = {}
    vehicle.take_off(FIRST)
    wait_for(vehicle.arrived)


@KINDS
def test_the_charge_is_that_of_the_emptiest_known_battery(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    autopilot.batteries = {0: 60, 1: -1, 2: 70}
    wait_for(lambda: vehicle.status().battery == pytest.approx(0.6))
    seen, ticks = set(), len(autopilot.track) + 20
    wait_for(lambda: seen.add(round(vehicle.status().battery, 3)) or len(autopilot.track) > ticks)
    assert seen == {0.6}


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [
        ("px4", ["RTL_RETURN_ALT"]),
        *in_soak(("px4", ["RTL_CONE_ANG"]), ("ardupilot", ["RTL_ALT", "RTL_ALT_M"])),
    ],
)
def test_a_vehicle_without_a_return_altitude_is_refused(
    fly: Fly, kind: Kind, lacks: list[str]
) -> None:
    with pytest.raises(ConfigError, match="return altitude"):
        fly(kind, lacks=lacks)


@KINDS
def test_a_take_off_ends_when_somebody_takes_over(
    monkeypatch: pytest.MonkeyPatch, fly: Fly, kind: Kind
) -> None:
    vehicle, autopilot = fly(kind)
    vehicle.take_off(FIRST)
    wait_for(lambda: autopilot.at[2] > 5 and vehicle.status().controlled)
    autopilot.mode = [mode for mode in MODES[kind] if mode != autopilot.mode][-1]
    wait_for(lambda: not vehicle.status().controlled)
    wait_for(lambda: not autopilot.speed.any())  # at the altitude of its way
    close(vehicle, monkeypatch)
    assert "goto" not in autopilot.commands


def test_a_fence_that_is_refused_is_reported(fly: Fly) -> None:
    with pytest.raises(ConfigError, match="refuses upload_geofence"):
        fly("px4", fence_result=1)


@KINDS
def test_another_mode_ends_control(fly: Fly, kind: Kind) -> None:
    vehicle, autopilot = fly(kind)
    vehicle.take_off(FIRST)
    wait_for(vehicle.arrived)
    own, (*_, other) = autopilot.mode, [mode for mode in MODES[kind] if mode != autopilot.mode]
    assert vehicle.status().controlled
    for mode, controlled in ((other, False), (own, True), ("RTL", False)):
        autopilot.mode = mode
        wait_for(lambda controlled=controlled: vehicle.status().controlled == controlled)
    vehicle.return_home()
    wait_for(lambda: vehicle.status().controlled)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"health": 0}, "armable"), ({"moved": 8.0}, "deployment.home")],
)
def test_a_vehicle_that_is_not_ready_is_refused(
    fly: Fly, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        fly("px4", **options)


def test_a_silent_vehicle_shows_its_age(fly: Fly) -> None:
    vehicle, autopilot = fly("px4")
    autopilot.stop()
    last = vehicle.status().time
    wait_for(lambda: time.time() - vehicle.status().time > 0.5)
    assert vehicle.status().time - last < 0.5


def test_another_autopilot_is_refused(fly: Fly) -> None:
    with pytest.raises(ConfigError, match=r"deployment\.autopilot"):
        fly("px4", said="ardupilot")


@pytest.mark.parametrize("url", ["nonsense", "udpin://127.0.0.1:{port}"])
def test_no_vehicle_is_reported(url: str) -> None:
    environment, place = environment_with(), place_at(*ORIGIN)
    url = url.format(port=free_port(socket.SOCK_DGRAM))
    plan = open_plan(environment, place, UAV)
    with pytest.raises(ConfigError, match="--vehicle"):
        MavsdkVehicle(url, plan, environment, place, WallClock(), patience=0.2)


def test_return_altitudes_differ() -> None:
    plans = [open_plan(environment_with(), place_at(*ORIGIN), uav) for uav in range(3)]
    levels = [plan.return_altitude for plan in plans]
    assert all(b - a == 5.0 for a, b in itertools.pairwise(levels))


@pytest.mark.parametrize(
    "home",
    [None, ORIGIN, (48.0001, 11.0001), (47.99996, 11.0001), (48.0001, 10.9997)],
    ids=["none", "corner", "inside", "close", "third pad inside"],
)
def test_pads_in_the_area_are_refused(home: tuple[float, float] | None) -> None:
    environment = environment_with(home=home)
    with pytest.raises(ConfigError, match=r"deployment\.home"):
        open_plan(environment, place_at(*ORIGIN), 0)
