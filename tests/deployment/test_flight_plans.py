"""Flight plans: UAVs keep apart on the way, and hazards are named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.deployment.flight_plans import AFTER, BEFORE, team_stops, waiting_times
from marl_framework.deployment.hazards import closest_approach, describe_leg
from tests.deployment.flying import INTO_UTM, SOUTH, WEST, missions, plan
from tests.mission.zones import feature, write_zones

Fly = Callable[..., int]
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
    for start, end in itertools.pairwise(stops):
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


def test_everyone_waits_for_the_slowest() -> None:
    stops = np.array([[(0, 0, 5), (9, 0, 5)], [(5, 0, 5), (9, 0, 15)]], float)
    assert waiting_times(stops, 2.5).tolist() == [[0, 0], [2, 0]]


def test_a_deployment_warns_of_uavs_that_come_close(
    fly: Fly, utm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crowded = ("experiment.policy=random", "experiment.missions.n_agents=8")
    assert fly(utm, *crowded, "environment.x_dim=10", "environment.y_dim=15") == 0
    near = [mission["closest_approach"]["metres"] < 2.5 for _, mission in missions(tmp_path)]
    assert any(near)
    assert capsys.readouterr().out.count("warning: mission_") == sum(near)


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
        legs = ("on the way to their starts", "on the way home")
        assert {(way["uav"], way["where"]) for way in mission["through_zones"]} == {
            *itertools.product((1, 2), legs)
        }
        assert any(f"{folder.name}: UAV 2" in line and legs[1] in line for line in warned)
        fence = plan(folder, 1)["geoFence"]
        (polygon,) = fence["polygons"]  # over the other zone a mission may fly
        assert (polygon["inclusion"], polygon["version"], fence["version"]) == (False, 1, 2)
        written = shapely.Polygon(np.array(polygon["polygon"])[:, ::-1])
        assert shapely.hausdorff_distance(written, shapely.Polygon(ring)) < 1e-7  # 1 cm
