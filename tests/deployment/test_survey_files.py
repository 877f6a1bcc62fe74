"""Belief maps and tracks: they lie where pyproj says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pyproj
import pytest
import rasterio
import shapely
import shapely.affinity

from marl_framework.config.geography import place_at
from marl_framework.config.loading import load_config
from marl_framework.deployment.survey_files import line_geometry, write_image
from tests.deployment.flying import (
    INTO_UTM,
    MAP,
    SOUTH,
    WEST,
    bumps,
    corner,
    missions,
    readings,
    tracks,
)
from tests.mission.zones import feature, write_zones

Fly = Callable[..., int]
ZONES = "experiment.constraints.no_fly_zones"


def test_waypoints_lie_on_the_lattice_by_longitude_and_latitude(flown: Path) -> None:
    config = load_config(flown / "runs" / "t" / "config.yaml")
    for folder, mission in missions(flown):
        for n, track in enumerate(tracks(folder), start=1):
            lon, lat = np.array(track["geometry"]["coordinates"]).T  # two axes: no altitude
            found = np.stack(INTO_UTM.transform(lon, lat), 1) - corner(mission)
            local = readings(folder, n)
            np.testing.assert_allclose(found, local[:, :2], atol=0.01)
            np.testing.assert_allclose(found[:, 0], 5 * np.round(found[:, 0] / 5), atol=0.01)
            assert track["geometry"]["type"] == "LineString"
            assert track["properties"]["altitudes_above_ground_m"] == local[:, 2].tolist()
            assert track["properties"]["readings"] == config.missions.episode_length + 1
        assert {p.name for p in folder.glob("waypoints.*")} == {
            *("waypoints.csv", "waypoints.geojson")
        }


def test_a_belief_is_a_geotiff_in_the_system_of_the_map(flown: Path) -> None:
    config = load_config(flown / "runs" / "t" / "config.yaml")
    (folder, mission), _ = missions(flown)
    with rasterio.open(folder / "belief.tif") as file:
        assert file.crs == "EPSG:32632"
        assert file.bounds[:2] == pytest.approx(corner(mission), abs=1e-6)
        assert file.res == pytest.approx(config.geometry.cell_size)
        assert file.dtypes == ("float32",)
        image = file.read(1)
    np.testing.assert_array_equal(np.rot90(image, -1), np.load(folder / "belief.npy"))
    assert not (folder / "belief.tiff").exists()


def test_images_have_north_up(tmp_path: Path) -> None:
    belief = np.zeros((4, 6), np.float32)
    belief[3, 5] = 1  # far right, far up
    write_image(belief, tmp_path / "belief.tiff")
    image = cv2.imread(str(tmp_path / "belief.tiff"), cv2.IMREAD_UNCHANGED)
    assert (image.shape, image.dtype) == ((6, 4), np.float32)
    assert image[0, 3] == image.sum() == 1


def test_an_origin_places_a_map_without_coordinates(fly: Fly, tmp_path: Path) -> None:
    np.save(tmp_path / "map.npy", np.rot90(bumps(), -1))
    place = ("deployment.origin=[48.1, 11.5]", f"{MAP}.resolution=0.5")
    assert fly(tmp_path / "map.npy", *place) == 0
    geodesic = pyproj.Geod(ellps="WGS84")
    for folder, mission in missions(tmp_path):
        lon, lat = tracks(folder)[0]["geometry"]["coordinates"][0]
        azimuth, _, distance = geodesic.inv(11.5, 48.1, lon, lat)
        x, y = readings(folder, 1)[0, :2] + mission["window_origin_m"]
        assert distance == pytest.approx(np.hypot(x, y), abs=0.01)
        assert azimuth == pytest.approx(np.degrees(np.arctan2(x, y)), abs=0.01)  # x is east


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("deployment.origin=[48.1, 11.5]", "deployment.origin"),
        ("deployment.origin=[98.1, 11.5]", "deployment.origin"),
        ("deployment.origin=[48.1]", "deployment.origin"),
        ("deployment.home=[11.571, 48.139]", "deployment.home: [11.571, 48.139]"),
        ("deployment.home=[148.1, 11.5]", "deployment.home"),
        ("deployment.speed=0", "deployment.speed"),
        (f"{MAP}.resolution=1.2", f"{MAP}.resolution"),
    ],
)
def test_a_bad_setting_is_one_line_and_leaves_nothing(
    setting: str, named: str, fly: Fly, utm: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert named in refused(fly, utm, setting)
    assert not (tmp_path / "runs").exists()


def test_a_place_in_the_map_is_named_where_a_team_was_trained_on_random_fields(
    fly: Fly, utm: Path, refused: Callable[..., str]
) -> None:
    fields = "environment.field=random", "experiment.missions.start=random"
    assert str(utm) in refused(fly, utm, "deployment.origin=[48, 11]", *fields)


def test_a_place_needs_coordinates_and_the_extra(
    fly: Fly,
    utm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:
    np.save(tmp_path / "map.npy", bumps())
    plain = tmp_path / "map.npy", f"{MAP}.resolution=1.0"
    assert "deployment.home" in refused(fly, *plain, "deployment.home=[48, 11]")
    monkeypatch.setitem(sys.modules, "rasterio", None)
    assert "deployment.origin" in refused(fly, *plain, "deployment.origin=[48, 11]")
    assert "pip install 'marl_framework[geo]'" in refused(fly, utm)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("unit", ["degrees", "metres"])
def test_no_waypoint_lies_in_a_zone(unit: str, fly: Fly, utm: Path, tmp_path: Path) -> None:
    """Squares all over the map, so that every window has some; the mission's maps agree."""
    left = np.arange(3.0, 150, 20)
    squares = shapely.MultiPolygon([shapely.box(x, y, x + 9, y + 9) for x in left for y in left])
    on_earth = shapely.affinity.translate(squares, WEST, SOUTH)
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


def test_a_zone_over_a_window_is_one_line_and_leaves_nothing(
    fly: Fly, utm: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    file = write_zones(tmp_path / "z.json", feature(shapely.box(-10, -10, 160, 140)))
    assert ZONES in refused(fly, utm, f"{ZONES}={file}")
    assert not (tmp_path / "runs").exists()


def test_a_path_of_one_point_is_a_point_and_of_none_is_nothing() -> None:
    assert line_geometry(np.array([[11.0, 48.0]])) == {"type": "Point", "coordinates": [11.0, 48.0]}
    assert line_geometry(np.zeros((0, 2))) is None


def test_a_line_along_the_antimeridian_has_finite_points() -> None:
    """Points on it are at 180 or -180 degrees, as rounded."""
    for side in (180.0, -180.0):
        found = line_geometry(np.array([[side, 1.0], [-side, 2.0], [-side, 3.0]]))
        parts = np.concatenate(found["coordinates"])
        assert np.isfinite(parts).all()
        assert set(np.abs(parts[:, 0])) == {180.0}


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
