"""Files of no-fly zones: where their polygons lie, and what is wrong with a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import shapely
import torch
from shapely.ops import nearest_points

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from tests.mission.zones import feature, write_zones, zone_config

KEY = "experiment.constraints.no_fly_zones"
ORIGIN = (48.1492, 11.5687)
SQUARE = feature(shapely.box(8, 8, 17, 12))


def environment(path: Path, **options: Any) -> MissionEnvironment:
    return MissionEnvironment(zone_config(path, **options), 2, "cpu")


def test_degrees_lie_where_pyproj_says(tmp_path: Path) -> None:
    """Around the origin, in the transverse Mercator projection of any mapping software."""
    near = pyproj.Proj(proj="tmerc", lat_0=ORIGIN[0], lon_0=ORIGIN[1], datum="WGS84")
    metres = shapely.Polygon([(7, 8), (18, 9), (22, 20.4), (9, 14)])
    ring = [near(x, y, inverse=True) for x, y in metres.exterior.coords]
    path = write_zones(tmp_path / "z.json", feature(shapely.Polygon(ring)), metres=False)
    env = environment(path, deployment={"origin": ORIGIN})
    assert env.zones is not None
    (zone,) = env.zones.zones
    assert shapely.hausdorff_distance(zone.shape, metres) < 1e-3
    plain = environment(write_zones(tmp_path / "m.json", feature(metres)))
    assert plain.zones is not None
    assert env.zones.closed().equal(plain.zones.closed())
    assert 0 < env.zones.closed().double().mean() < 0.5


def test_long_edges_follow_longitude_and_latitude(tmp_path: Path) -> None:
    """A parallel 10 km long bends by two metres."""
    near = pyproj.Proj(proj="tmerc", lat_0=ORIGIN[0], lon_0=ORIGIN[1], datum="WGS84")
    edge = ORIGIN[0] + 1e-4
    shape = shapely.box(ORIGIN[1] - 0.07, ORIGIN[0] - 0.01, ORIGIN[1] + 0.07, edge)
    path = write_zones(tmp_path / "z.json", feature(shape), metres=False)
    with pytest.raises(ConfigError, match=f"^{KEY}: "):
        environment(path, deployment={"origin": ORIGIN}, dims=(10.0, 10.0))
    env = environment(path, deployment={"origin": ORIGIN}, dims=(30.0, 40.0))
    assert env.zones is not None
    boundary = nearest_points(
        shapely.LineString([(0, 5), (0, 60)]), env.zones.zones[0].shape.boundary
    )[1]
    assert boundary.y == pytest.approx(near(ORIGIN[1], edge)[1], abs=0.01)


def test_a_floor_and_a_height_are_read(tmp_path: Path) -> None:
    features = [feature(shapely.box(0, 0, 4, 4), floor=2, height=7.5), SQUARE]
    path = write_zones(tmp_path / "z.json", *features)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a byte order mark
    env = environment(path)
    assert env.zones is not None
    assert [(zone.floor, zone.height) for zone in env.zones.zones] == [(2, 7.5), (0, np.inf)]


def test_one_feature_needs_no_collection(tmp_path: Path) -> None:
    zone = feature(shapely.box(0, 0, 4, 4), height=7.5) | {"coordinates": "metres"}
    (path := tmp_path / "z.json").write_text(json.dumps(zone))
    env = environment(path)
    assert env.zones is not None
    assert [(zone.shape.bounds, zone.height) for zone in env.zones.zones] == [((0, 0, 4, 4), 7.5)]


def collection(*features: Any, **fields: Any) -> str:
    return json.dumps({"type": "FeatureCollection", "features": features, **fields})


def in_metres(*features: Any) -> str:
    return collection(*features, coordinates="metres")


def ring(*points: Any) -> dict[str, Any]:
    return {"geometry": {"type": "Polygon", "coordinates": [points]}}


SMALL = shapely.box(0, 0, 4, 4)
BAD = {
    "missing": (None, "zones.json"),
    "text": ("{", "zones.json"),
    "list": ("[]", "FeatureCollection"),
    "line": (json.dumps({"type": "LineString", "coordinates": [[0, 0]]}), "FeatureCollection"),
    "single": (json.dumps(SQUARE | {"geometry": None, "coordinates": "metres"}), "feature 1: "),
    "empty": (collection(), "features"),
    "unit": (collection(SQUARE, coordinates="feet"), '"coordinates"'),
    "point": (in_metres(SQUARE, feature(shapely.Point(1, 2))), "feature 2: .*Polygon"),
    "null": (in_metres({"type": "Feature", "geometry": None}), "feature 1: "),
    "number": (in_metres(7), "feature 1: "),
    "ring": (in_metres(ring([0, 0], "x")), "feature 1: "),
    "bow": (
        in_metres(feature(shapely.Polygon([(0, 0), (9, 9), (9, 0), (0, 9)]))),
        "feature 1: .*Self-intersection",
    ),
    "nan": (in_metres(ring([0, 0], [1, 0], [float("nan"), 1], [0, 0])), "feature 1: .*Invalid"),
    "nothing": (in_metres(feature(shapely.Polygon())), "feature 1: .*(?<!Valid Geometry)$"),
    "height": (in_metres(feature(SMALL, height="high")), "feature 1: .*height"),
    "huge height": (in_metres(feature(SMALL, height=10**400)), "feature 1: .*height"),
    "misspelt": (in_metres(feature(SMALL, Height=9)), "feature 1: .*Height"),
    "upside down": (
        in_metres(feature(SMALL, floor=9, height=4)),
        "feature 1: .*height 4 .*floor 9",
    ),
    "no place": (collection(SQUARE), "deployment.origin"),
    "globe": (collection(feature(shapely.box(180, 0, 190, 5))), "feature 1: .*degrees"),
    "all starts": (
        in_metres(feature(shapely.box(-1, -1, 31, 31))),
        r"zones\.json: .*0 starts .*3 UAVs",
    ),
    "few starts": (
        in_metres(feature(shapely.box(-1, -1, 31, 29))),
        "7 starts .*8 UAVs; (?!.*field)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_clear_line(case: str, tmp_path: Path) -> None:
    path = tmp_path / "zones.json"
    text, message = BAD[case]
    if text is not None:
        path.write_text(text)
    origin = ORIGIN if case == "globe" else None
    agents = 8 if case == "few starts" else 3
    with pytest.raises(ConfigError, match=f"^{KEY}: .*{message}") as caught:
        environment(path, agents=agents, deployment={"origin": origin})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("corner", "metres", "hint"),
    [(ORIGIN, False, "longitude"), ((500, 8), True, "metres"), ((8, -30), True, "metres")],
)
def test_zones_outside_the_area_are_a_warning(
    corner: tuple[float, float], metres: bool, hint: str, tmp_path: Path
) -> None:
    x, y = corner  # latitude and longitude are swapped
    path = write_zones(
        tmp_path / "z.json", feature(shapely.box(x, y, x + 2e-4, y + 2e-4)), metres=metres
    )
    with pytest.warns(ConfigWarning, match=f"^{KEY}: .*z.json .* 30 x 30 m.*{hint}") as caught:
        environment(path, deployment={"origin": ORIGIN}).reset()
    assert len(caught) == 1


def test_zones_may_lie_outside_a_window_but_not_outside_the_map(tmp_path: Path) -> None:
    def fly_windows(zone_at: float) -> None:
        env = MissionEnvironment(over_raster(tmp_path, zone_at), 1, "cpu", "deployment")
        assert env.zones is not None
        for x in (0.0, 20.0):
            assert env.zones.moves((x, 0.0)).equal(env.lattice.table())

    fly_windows(150)
    with pytest.warns(ConfigWarning, match="map of 200 x 90 m") as caught:
        fly_windows(210)
    assert len(caught) == 1


def over_raster(folder: Path, x: float) -> Config:
    """Missions over a map of 200 m x 90 m with a zone at `x`."""
    np.save(folder / "map.npy", np.random.default_rng(1).random((200, 90)).astype(np.float32))
    raster = {"path": str(folder / "map.npy"), "resolution": 1.0}
    sensor = {
        "pixel": {"number_x": 12, "number_y": 12},
        "simulation": {"kinds": ("raster",), "raster": raster},
    }
    zone = feature(shapely.box(x, 10, x + 4, 14))
    return zone_config(write_zones(folder / "z.json", zone), sensor=sensor)


@pytest.mark.parametrize(
    ("start", "at", "agents", "message"),
    [
        ("corners", 5, 3, r"UAV 1 of 3 .*5, 5 m.*experiment\.missions\.start"),
        # Only nine UAVs start on a grid that has the middle of the area.
        ("corners", 15, (4, 9, 16), r"UAV 7 of 9 .*15, 15 m"),
        ("published", 5, 3, r"published .*experiment\.missions\.start"),
    ],
)
def test_a_start_in_a_zone_is_one_clear_line(
    start: str, at: int, agents: Any, message: str, tmp_path: Path
) -> None:
    box = shapely.box(at - 1, at - 1, at + 1, at + 1)
    path = write_zones(tmp_path / "z.json", feature(box))
    with pytest.raises(ConfigError, match=message):
        environment(path, missions={"start": start}, agents=agents)


def test_a_start_without_a_way_out_is_refused_or_left_out(tmp_path: Path) -> None:
    """A ring around (5, 5) that its own place is not part of."""
    ring = shapely.box(1, 1, 9, 9).difference(shapely.box(4, 4, 6, 6))
    path = write_zones(tmp_path / "z.json", feature(ring))
    with pytest.raises(ConfigError, match=r"UAV 1 of 3 .*5, 5 m"):
        environment(path, missions={"start": "corners"}, actions=4)
    env = environment(path, actions=4, agents=8)
    for _ in range(10):
        positions = env.reset().positions
        assert not (positions[..., :2] == torch.tensor([1, 1])).all(-1).any()


def test_metres_over_a_raster_are_those_of_the_area(tmp_path: Path) -> None:
    env = MissionEnvironment(over_raster(tmp_path, 8), 2, "cpu")
    moves = env.reset().moves
    assert env.zones is not None
    assert moves[0].equal(env.lattice.table() & ~env.zones.closed())
    degrees = write_zones(tmp_path / "d.json", SQUARE, metres=False)
    sensor = env.config.sensor.model_dump()
    with pytest.raises(ConfigError, match=f"^{KEY}: .*deployment"):
        environment(degrees, sensor=sensor, deployment={"origin": ORIGIN})
