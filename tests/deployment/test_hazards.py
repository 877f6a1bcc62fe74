"""Hazards: close approaches of late UAVs are found, and ways through zones are named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import shapely
import shapely.affinity
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.config.mission import DeploymentConfig
from marl_framework.deployment.flight_plans import without_holes
from marl_framework.deployment.hazards import (
    STEP,
    closest_approach,
    crossed_ways,
    describe_leg,
    find_hazards,
    segment_distances,
)
from marl_framework.deployment.schedule import AFTER, BEFORE, Schedule, team_schedule
from marl_framework.mission.environment import MissionEnvironment
from tests.deployment.flying import INTO_UTM, SOUTH, WEST, missions, plan
from tests.mission.zones import feature, write_zones
from tests.small import small_config

Fly = Callable[..., int]
FINE = 0.05  # [s]
SLACK = 0.4  # two UAVs of at most 4 m/s, half a fine step each way, in time and in delay


def position(schedule: Schedule, n: int, time: float) -> np.ndarray:
    for k in range(len(schedule.stops) - 1):
        if time < schedule.departures[k, n]:
            return schedule.stops[k, n]
        if time < schedule.arrivals[k + 1, n]:
            start, end = schedule.departures[k, n], schedule.arrivals[k + 1, n]
            share = (time - start) / (end - start)
            return (1 - share) * schedule.stops[k, n] + share * schedule.stops[k + 1, n]
    return schedule.stops[-1, n]


def closest(schedule: Schedule, late: float) -> float:
    """Return the least distance over all times, pairs and delays."""
    number, most = schedule.stops.shape[1], round(late / FINE)
    end = round(schedule.arrivals.max() / FINE) + 1
    path = [
        np.array([position(schedule, n, FINE * k) for k in range(-most, end + most)])
        for n in range(number)
    ]
    return min(
        float(np.linalg.norm(path[a][delay:] - path[b][: len(path[b]) - delay], axis=1).min())
        for delay in range(most + 1)
        for a, b in itertools.permutations(range(number), 2)
    )


@settings(max_examples=10)
@given(
    number=st.integers(2, 3),
    moves=st.integers(1, 3),
    seed=st.integers(0, 2**16),
    late=st.floats(0, 15),
    separation=st.floats(1, 6),
)
def test_the_closest_approach_is_that_of_all_times_and_delays(
    number: int, moves: int, seed: int, late: float, separation: float
) -> None:
    config = DeploymentConfig(separation=separation)
    tracks = 5.0 * np.random.default_rng(seed).integers(0, 4, (number, moves, 3)) + [0, 0, 5]
    schedule = team_schedule(list(tracks), (-9.0, -9.0), 20.0, config)
    nearest = closest_approach(schedule, late, separation)
    assert nearest is not None
    assert nearest.metres <= closest(schedule, late) + 1e-6
    assert nearest.metres >= closest(schedule, late + 2 * STEP) - SLACK
    if nearest.tolerated > 0:
        assert closest(schedule, nearest.tolerated) >= separation - 1e-6
    if nearest.tolerated < late:
        assert closest(schedule, nearest.tolerated + 2 * STEP) < separation + SLACK
    first, second = (
        position(schedule, uav - 1, time + STEP / 2)
        for uav, time in zip(nearest.uavs, nearest.times, strict=True)
    )
    assert np.linalg.norm(first - second) <= nearest.metres + 4 * STEP


POINTS = st.tuples(*[st.integers(-3, 3)] * 12)


@given(points=POINTS)
def test_the_distance_of_segments_is_that_of_their_points(points: tuple[int, ...]) -> None:
    a, b, c, d = np.array(points, float).reshape(4, 3)
    share = np.linspace(0, 1, 61)[:, None]
    on_ab, on_cd = a + share * (b - a), c + share * (d - c)
    expected = np.linalg.norm(on_ab[:, None] - on_cd, axis=-1).min()
    found = float(segment_distances(a, b, c, d))
    assert expected - 0.2 <= found <= expected + 1e-9


def test_a_single_uav_meets_nobody() -> None:
    schedule = team_schedule([np.ones((3, 3))], (0, 0), 15, DeploymentConfig())
    assert closest_approach(schedule, 9.0, 5.0) is None
    assert find_hazards(schedule, 5.0, None, (0, 0)) == {}


def test_a_follower_meets_a_leader_that_is_late() -> None:
    """5 m apart on one line, 5 m a move: in step they stay apart."""
    line = [np.array([(5.0 * (k + n), 0, 5) for k in range(9)]) for n in (0, 1)]
    schedule = team_schedule(line, (-40, 0), 15, DeploymentConfig(separation=3))
    nearest = closest_approach(schedule, 0.0, 3.0)
    assert nearest is not None
    assert nearest.tolerated == 0
    found = find_hazards(schedule, 3.0, None, (0, 0))["closest_approach"]
    assert found["metres"] == 0
    assert found["uavs"] == [1, 2]
    assert found["delay_s"] == pytest.approx(5 * schedule.longest_move, abs=0.1)
    assert 0 < found["tolerated_delay_s"] < schedule.longest_move


def test_altitude_bands_keep_uavs_apart() -> None:
    """In the same columns, one above the other; their pads and ways lie far apart."""
    draw = np.random.default_rng(1)
    tracks = [
        np.column_stack((100 * n + 5 * draw.integers(0, 2, (6, 2)), np.full(6, 5 + 8 * n)))
        for n in range(2)
    ]
    config = DeploymentConfig(separation=7, pad_distance=100)
    schedule = team_schedule(tracks, (0, 0), 15, config)
    apart = find_hazards(schedule, 7.0, None, (0, 0))["closest_approach"]
    assert apart["metres"] >= 7
    assert apart["tolerated_delay_s"] == apart["delay_s"]
    for track in tracks:
        track[:, :2] %= 100  # move the second over the first
    one_column = Schedule(
        np.stack(tracks, axis=1), *[np.arange(0.0, 12, 2)[:, None].repeat(2, 1)] * 2, [6, 6]
    )
    nearest = closest_approach(one_column, 9.0, 7.0)
    assert nearest is not None
    assert (nearest.metres, nearest.tolerated) == (pytest.approx(8), 9)


@pytest.mark.parametrize(
    ("leg", "where"),
    [
        (-1, "before take-off"),
        (2, "on the way to its start"),
        (3, "on move 1"),
        (5, "on move 3"),
        (6, "on the way home"),
    ],
)
def test_a_leg_is_told_in_words(leg: int, where: str) -> None:
    readings = 4  # three moves
    schedule = team_schedule([np.zeros((readings, 3))] * 2, (0, 0), 15, DeploymentConfig())
    assert len(schedule.stops) == BEFORE + 4 + AFTER
    assert describe_leg(leg, readings) == where


def test_a_deployment_warns_of_uavs_that_come_close(
    fly: Fly, utm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crowded = ("experiment.policy=random", "experiment.missions.n_agents=8")
    assert fly(utm, *crowded, "environment.x_dim=10", "environment.y_dim=15") == 0
    near = [mission["closest_approach"]["metres"] < 5 for _, mission in missions(tmp_path)]
    assert any(near)
    assert capsys.readouterr().out.count("warning: mission_") == sum(near)


holes = st.lists(st.tuples(*[st.integers(1, 8)] * 2), min_size=1, max_size=6, unique=True)


@given(holes, st.sampled_from([0.0, 0.7, 2.5]))
def test_fences_of_a_zone_leave_its_holes_open(at: list[tuple[int, int]], turn: float) -> None:
    rings = shapely.union_all([shapely.box(x, y, x + 0.8, y + 0.8) for x, y in at])
    zone = shapely.affinity.rotate(shapely.box(0, 0, 10, 10) - rings, turn, use_radians=True)
    parts = without_holes(zone)
    assert all(part.geom_type == "Polygon" and not part.interiors for part in parts)
    union = shapely.union_all(parts)
    assert union.symmetric_difference(zone).area < 1e-9
    assert sum(part.area for part in parts) == pytest.approx(zone.area)


def test_ways_through_zones_are_named_and_zones_are_fences(
    fly: Fly, utm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They take off in a zone of 3 m; a tower closed up to the sky is a fence, if near."""
    tower, far = shapely.box(20, 20, 31, 29), feature(shapely.box(9000, 9000, 9009, 9009))
    file = write_zones(
        tmp_path / "z.json", feature(tower), far, feature(shapely.box(0, 0, 20, 4), height=3)
    )
    points = np.add([[2, 2], *tower.exterior.coords], (WEST, SOUTH))
    (home, *ring) = np.stack(INTO_UTM.transform(*points.T, direction="INVERSE"), -1)
    zones = f"experiment.constraints.no_fly_zones={file}"
    obstacles = "experiment.constraints.obstacles.number=9"
    assert fly(utm, zones, f"deployment.home=[{home[1]}, {home[0]}]", obstacles) == 0
    warned = [line for line in capsys.readouterr().out.splitlines() if "deployment.home" in line]
    assert len(warned) == 2 * 2 * 2
    for folder, mission in missions(tmp_path):
        legs = ("on the way to its start", "on the way home")
        assert {(way["uav"], way["where"]) for way in mission["through_zones"]} == {
            *itertools.product((1, 2), legs)
        }
        assert any(f"{folder.name}: UAV 2" in line and legs[1] in line for line in warned)
        fence = plan(folder, 1)["geoFence"]
        border, polygon = fence["polygons"]  # over the other zone a mission may fly
        assert border["inclusion"] is True
        assert (polygon["inclusion"], polygon["version"], fence["version"]) == (False, 1, 2)
        written = shapely.Polygon(np.array(polygon["polygon"])[:, ::-1])
        assert shapely.hausdorff_distance(written, shapely.Polygon(ring)) < 1e-7  # 1 cm


@pytest.mark.parametrize(("height", "crosses"), [(None, True), (20, False)])
def test_ways_to_a_pad_that_cross_a_zone_are_counted(
    tmp_path: Path, height: float | None, crosses: bool
) -> None:
    tower, pad = shapely.box(-2, -12, 8, 0), (3.0, -20.0, 25.0)
    options = {} if height is None else {"height": height}
    file = write_zones(tmp_path / "z.json", feature(tower, **options))
    config = small_config(constraints={"no_fly_zones": str(file)})
    env = MissionEnvironment(config, 1, "cpu", "test")
    assert env.zones is not None
    ends = itertools.product(np.arange(0, 31, 5), repeat=2)
    lines = [shapely.LineString([pad[:2], end]).intersects(tower) for end in ends]
    assert 0 < sum(lines) < len(lines) == 49
    assert crossed_ways(env.zones, env.lattice, pad) == crosses * sum(lines)


def test_a_zone_near_a_distant_home_is_a_fence(fly: Fly, utm: Path, tmp_path: Path) -> None:
    tower = shapely.box(-3020, 20, -3000, 40)
    file = write_zones(tmp_path / "z.json", feature(shapely.box(-20, -20, -9, -9)), feature(tower))
    x, y = INTO_UTM.transform(WEST - 3000, SOUTH, direction="INVERSE")
    zones = f"experiment.constraints.no_fly_zones={file}"
    assert fly(utm, zones, f"deployment.home=[{y}, {x}]") == 0
    for folder, _ in missions(tmp_path):
        _, *fences = plan(folder, 1)["geoFence"]["polygons"]
        degrees = [np.array(fence["polygon"])[:, ::-1].T for fence in fences]
        written = [shapely.Polygon(np.transpose(INTO_UTM.transform(*ring))) for ring in degrees]
        moved = shapely.affinity.translate(tower, WEST, SOUTH)
        assert min(shapely.hausdorff_distance(moved, each) for each in written) < 0.05
