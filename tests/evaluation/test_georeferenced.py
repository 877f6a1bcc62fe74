"""Deployments over maps with coordinates: what they hand over lies where pyproj says."""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import rasterio
import shapely
import shapely.affinity
from affine import Affine

from marl_framework.config.loading import load_config
from marl_framework.evaluation.georeferenced import line_geometry
from marl_framework.main import main
from marl_framework.mission.terrains.geotiff import place_at
from tests.mission.terrains.test_geotiff import write
from tests.mission.zones import feature, write_zones

Fly = Callable[..., int]
MAP = "sensor.simulation.raster"
WEST, NORTH = 691000.0, 5335000.0
MAP_CORNER = (WEST, NORTH - 130)
ZONES = "experiment.constraints.no_fly_zones"
INTO_UTM = pyproj.Transformer.from_crs("EPSG:4326", "EPSG:32632", always_xy=True)


def deploy(folder: Path, path: Path, *settings: str) -> int:
    """Deploy a planner over the map of a file into folder/runs/t; return the exit code."""
    keys = (
        "experiment.missions.mission_mode=deployment",
        "experiment.policy=coverage",
        "sensor.simulation.kinds=[raster]",
        f"{MAP}.path={path}",
        f"logging.directory={folder / 'runs'}",
        *settings,
    )
    given = [word for key in keys for word in ("--set", key)]
    options = ["--run-name", "t", "--device", "cpu", "--missions", "2"]
    return main(["--config", "params_test.yaml", *options, *given])


@pytest.fixture
def fly(tmp_path: Path) -> Fly:
    """`deploy` into tmp_path."""
    return functools.partial(deploy, tmp_path)


def bumps(rows: int = 260, columns: int = 300) -> np.ndarray:
    y, x = np.mgrid[:rows, :columns]
    return (np.sin(x / 17) + np.cos(y / 23)).astype(np.float32)


@pytest.fixture(scope="module")
def utm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map in UTM with pixels of half a metre."""
    at = Affine(0.5, 0, WEST, 0, -0.5, NORTH)
    path = tmp_path_factory.mktemp("maps") / "map.tif"
    return write(path, bumps(), crs="EPSG:32632", transform=at)


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory, utm: Path) -> Path:
    """The folder of a deployment of three UAVs."""
    folder = tmp_path_factory.mktemp("flown")
    assert deploy(folder, utm, "deployment.speed=4", "experiment.missions.n_agents=3") == 0
    return folder


def missions(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = json.loads((folder / "runs" / "t" / "summary.json").read_text())["results"]
    return [(folder / "runs" / "t" / m["folder"], m) for m in found["missions"]]


def tracks(folder: Path) -> list[dict[str, Any]]:
    found = json.loads((folder / "waypoints.geojson").read_text())
    assert found["type"] == "FeatureCollection"
    assert "crs" not in found  # RFC 7946, section 4
    features: list[dict[str, Any]] = found["features"]
    return features


def test_waypoints_lie_on_the_lattice_by_longitude_and_latitude(flown: Path) -> None:
    config = load_config(flown / "runs" / "t" / "config.yaml")
    for folder, mission in missions(flown):
        left, bottom = np.add(mission["window_origin_m"], (WEST, NORTH - 130))
        rows = np.genfromtxt(folder / "waypoints.csv", delimiter=",", skip_header=1)
        for n, track in enumerate(tracks(folder), start=1):
            lon, lat = np.array(track["geometry"]["coordinates"]).T  # two axes: no altitude
            x, y = np.subtract(INTO_UTM.transform(lon, lat), [[left], [bottom]])
            local = rows[rows[:, 0] == n]
            np.testing.assert_allclose(np.stack((x, y), 1), local[:, 2:4], atol=0.01)
            np.testing.assert_allclose(x, 5 * np.round(x / 5), atol=0.01)
            assert track["geometry"]["type"] == "LineString"
            assert track["properties"]["altitudes_above_ground_m"] == local[:, 4].tolist()
            assert track["properties"]["readings"] == config.missions.episode_length + 1
        assert {p.name for p in folder.glob("waypoints.*")} == {
            *("waypoints.csv", "waypoints.geojson")
        }


def test_a_belief_is_a_geotiff_in_the_system_of_the_map(flown: Path) -> None:
    config = load_config(flown / "runs" / "t" / "config.yaml")
    (folder, mission), _ = missions(flown)
    with rasterio.open(folder / "belief.tif") as file:
        assert file.crs == "EPSG:32632"
        left, bottom = np.add(mission["window_origin_m"], (WEST, NORTH - 130))
        assert file.bounds.left == left
        assert file.bounds.bottom == pytest.approx(bottom, abs=1e-6)
        assert file.res == pytest.approx(config.geometry.cell_size)
        assert file.dtypes == ("float32",)
        image = file.read(1)
    np.testing.assert_array_equal(np.rot90(image, -1), np.load(folder / "belief.npy"))
    assert not (folder / "belief.tiff").exists()


def test_an_origin_places_a_map_without_coordinates(fly: Fly, tmp_path: Path) -> None:
    np.save(tmp_path / "map.npy", np.rot90(bumps(), -1))
    place = ("deployment.origin=[48.1, 11.5]", f"{MAP}.resolution=0.5")
    assert fly(tmp_path / "map.npy", *place) == 0
    geodesic = pyproj.Geod(ellps="WGS84")
    for folder, mission in missions(tmp_path):
        track = tracks(folder)[0]
        lon, lat = track["geometry"]["coordinates"][0]
        azimuth, _, distance = geodesic.inv(11.5, 48.1, lon, lat)
        local = np.genfromtxt(folder / "waypoints.csv", delimiter=",", skip_header=1)[0, 2:4]
        x, y = local + mission["window_origin_m"]
        assert distance == pytest.approx(np.hypot(x, y), abs=0.01)
        assert azimuth == pytest.approx(np.degrees(np.arctan2(x, y)), abs=0.01)  # x is east


@pytest.mark.parametrize(
    ("settings", "extra", "named"),
    [
        (("deployment.origin=[48.1, 11.5]",), True, "deployment.origin: "),
        (("deployment.origin=[98.1, 11.5]",), True, "deployment.origin"),
        (("deployment.origin=[48.1]",), True, "deployment.origin"),
        ((f"{MAP}.resolution=1.2",), True, "leave it null"),
        ((), False, "pip install 'marl_framework[geo]'"),
    ],
)
def test_a_bad_place_is_one_line_and_leaves_nothing(
    settings: tuple[str, ...],
    extra: bool,
    named: str,
    fly: Fly,
    utm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not extra:
        monkeypatch.setitem(sys.modules, "rasterio", None)
    assert fly(utm, *settings) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert named in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("unit", ["degrees", "metres"])
def test_no_waypoint_lies_in_a_zone(unit: str, fly: Fly, utm: Path, tmp_path: Path) -> None:
    """Squares all over the map, so that every window has some; the mission's maps agree."""
    left = np.arange(3.0, 150, 20)
    squares = shapely.MultiPolygon([shapely.box(x, y, x + 9, y + 9) for x in left for y in left])
    on_earth = shapely.affinity.translate(squares, *MAP_CORNER)
    written = squares
    if unit == "degrees":
        written = shapely.transform(
            on_earth, lambda p: np.stack(INTO_UTM.transform(*p.T, direction="INVERSE"), -1)
        )
    file = write_zones(tmp_path / "z.json", feature(written), metres=unit == "metres")
    assert fly(utm, f"{ZONES}={file}", "experiment.policy=random") == 0
    for folder, mission in missions(tmp_path):
        origin = np.array(mission["window_origin_m"])
        window = shapely.box(*origin, *(origin + 50))
        assert 0.1 < window.intersection(squares).area / window.area < 0.3
        for track in tracks(folder):
            line = np.stack(INTO_UTM.transform(*np.array(track["geometry"]["coordinates"]).T), -1)
            assert not shapely.intersects(shapely.LineString(line), on_earth.buffer(-0.02))


def test_ways_through_zones_are_named_and_zones_are_fences(
    fly: Fly, utm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They take off in a zone of 3 m; a tower closed up to the sky is a fence, if near."""
    tower, far = shapely.box(20, 20, 31, 29), feature(shapely.box(9000, 9000, 9009, 9009))
    file = write_zones(
        tmp_path / "z.json", feature(tower), far, feature(shapely.box(0, 0, 20, 4), height=3)
    )
    corner = np.array([[WEST + 2, NORTH - 128], *(np.array(tower.exterior.coords) + MAP_CORNER)])
    (home, *ring) = np.stack(INTO_UTM.transform(*corner.T, direction="INVERSE"), -1)
    keys = f"{ZONES}={file}", f"deployment.home=[{home[1]}, {home[0]}]"
    assert fly(utm, *keys, "experiment.constraints.obstacles.number=9") == 0
    warned = capsys.readouterr().out
    for folder, mission in missions(tmp_path):
        legs = ("on the way to their starts", "on the way home")
        assert {(way["uav"], way["where"]) for way in mission["through_zones"]} == {
            *itertools.product((1, 2), legs)
        }
        assert f"{folder.name}: UAV 2 flies through a no-fly zone on the way home" in warned
        fence = json.loads((folder / "uav_1.plan").read_text())["geoFence"]
        (polygon,) = fence["polygons"]  # over the other zone a mission may fly
        assert (polygon["inclusion"], polygon["version"], fence["version"]) == (False, 1, 2)
        written = shapely.Polygon(np.array(polygon["polygon"])[:, ::-1])
        assert shapely.hausdorff_distance(written, shapely.Polygon(ring)) < 1e-7  # 1 cm


def test_a_zone_over_a_window_is_one_line_and_leaves_nothing(
    fly: Fly, utm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everywhere = feature(shapely.box(-10, -10, 160, 140))
    file = write_zones(tmp_path / "z.json", everywhere)
    assert fly(utm, f"{ZONES}={file}") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "experiment.constraints.no_fly_zones: " in error
    assert "0 starts at 15 m, in the window at" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("east", [True, False])
def test_a_line_over_the_antimeridian_is_cut(east: bool) -> None:
    """RFC 7946, section 3.1.9."""
    track = np.array([[0, 0], [10, 5], [30, 15], [40, 20]], float)
    degrees = place_at(-16.8, 179.9998).degrees(track if east else track[::-1])
    found = line_geometry(degrees.round(9))
    assert found["type"] == "MultiLineString"
    before, after = (np.array(part) for part in found["coordinates"])
    assert len(before) + len(after) == len(track) + 2
    assert np.ptp(before[:, 0]) < 0.001
    assert np.ptp(after[:, 0]) < 0.001
    assert (before[-1, 0], after[0, 0]) == ((180, -180) if east else (-180, 180))
    assert before[-1, 1] == after[0, 1]
    slope = np.diff(before[-2:], axis=0)[0] / np.diff(after[:2], axis=0)[0]
    assert slope[0] == pytest.approx(slope[1], rel=1e-3)  # it goes on as it came


def test_an_origin_needs_the_extra(
    fly: Fly, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "map.npy", np.rot90(bumps(), -1))
    monkeypatch.setitem(sys.modules, "rasterio", None)
    assert fly(tmp_path / "map.npy", "deployment.origin=[48, 11]", f"{MAP}.resolution=1.0") == 2
    assert "deployment.origin: " in capsys.readouterr().err
