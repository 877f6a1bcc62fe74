"""GeoTIFF: bands, unmeasured values, metres, and where maps lie, against pyproj."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
from affine import Affine
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Place, place_at
from marl_framework.config.mission import RasterConfig
from marl_framework.mission.terrains.geotiff import is_geotiff
from marl_framework.mission.terrains.raster_file import RasterMap, read_raster

UTM, DEGREES = "EPSG:32632", "EPSG:4326"
NORTH_UP = Affine(0.5, 0, 691000, 0, -0.5, 5335000)
IN_DEGREES = Affine(8e-6, 0, 11.5, 0, -5e-6, 48.1)


def slope(rows: int = 60, columns: int = 80) -> np.ndarray:
    """An image that rises by 1 a column and by 100 a row from the top."""
    return (100 * np.arange(rows)[:, None] + np.arange(columns)).astype(np.float32)


def write(path: Path, *bands: np.ndarray, **profile: Any) -> Path:
    import rasterio

    height, width = bands[0].shape
    shape = {"height": height, "width": width, "count": len(bands), "dtype": bands[0].dtype}
    names = profile.pop("names", ())
    scale = profile.pop("scale", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rasterio's, of files without coordinates
        with rasterio.open(path, "w", driver="GTiff", **shape, **profile) as file:
            for n, band in enumerate(bands, start=1):
                file.write(band, n)
            for n, name in enumerate(names, start=1):
                file.set_band_description(n, name)
            if scale is not None:
                file.scales, file.offsets = [scale[0]], [scale[1]]
    return path


def read(path: Path, **keys: Any) -> RasterMap:
    return read_raster(RasterConfig(path=str(path), **keys))


def placed(found: RasterMap) -> Place:
    assert found.place is not None
    return found.place


@pytest.mark.parametrize("shape", [(60, 80), (80, 60)])
@pytest.mark.parametrize(
    ("crs", "transform", "side"),
    [
        (UTM, NORTH_UP, 0.5),
        (UTM, NORTH_UP @ Affine.rotation(30), 0.5),
        (UTM, NORTH_UP @ Affine.scale(1, 2), 0.5),
        (DEGREES, IN_DEGREES, None),
        ("EPSG:3857", Affine(0.5, 0, 1280000, 0, -0.5, 6124000), None),  # not true metres
        ("EPSG:2225", Affine(2, 0, 6e6, 0, -2, 2e6), 2 * 1200 / 3937),  # US survey feet
    ],
    ids=["utm", "rotated", "oblong", "degrees", "mercator", "feet"],
)
def test_every_value_lies_where_pyproj_says(
    tmp_path: Path, crs: str, transform: Affine, side: float | None, shape: tuple[int, int]
) -> None:
    found = read(write(tmp_path / "m.tif", slope(*shape), crs=crs, transform=transform))
    assert side is None or found.resolution == pytest.approx(side, rel=1e-9 if crs == UTM else 1e-3)
    inner = np.argwhere(np.isfinite(found.values))
    assert len(inner) > 0.9 * min(shape) ** 2
    lon, lat = placed(found).degrees((inner + 0.5) * found.resolution).T
    x, y = pyproj.Transformer.from_crs(DEGREES, crs, always_xy=True).transform(lon, lat)
    column, row = ~transform @ (x, y)
    inside = (column > 1) & (column < shape[1] - 1) & (row > 1) & (row < shape[0] - 1)
    expected = 100 * (row - 0.5) + column - 0.5
    values = found.values[tuple(inner.T)]
    np.testing.assert_allclose(values[inside], expected[inside], atol=2.5)  # 0.025 of a row


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (DEGREES, IN_DEGREES),
        ("EPSG:3857", NORTH_UP),
        ("EPSG:3857", Affine(0.5, 0, 11577000, 0, -0.5, 150000)),  # only eastings are true
    ],
)
def test_resampled_metres_are_true_metres(tmp_path: Path, crs: str, transform: Affine) -> None:
    place = placed(read(write(tmp_path / "m.tif", slope(), crs=crs, transform=transform)))
    (a, b), (c, d) = place.degrees(np.array([(0, 0), (30, 40)]))
    _, _, distance = pyproj.Geod(ellps="WGS84").inv(a, b, c, d)
    assert distance == pytest.approx(50, abs=1e-4)


@given(
    latitude=st.floats(-80, 80),
    longitude=st.floats(-179, 179),
    x=st.floats(0, 2000),
    y=st.floats(0, 2000),
)
def test_metres_to_degrees_and_back_is_within_a_centimetre(
    latitude: float, longitude: float, x: float, y: float
) -> None:
    place = place_at(latitude, longitude)
    degrees = place.degrees(np.array([[x, y], [0, 0]])).round(9)  # as files have them
    np.testing.assert_allclose(degrees[1], (longitude, latitude), atol=1e-8)
    np.testing.assert_allclose(place.metres(degrees)[0], (x, y), atol=0.01)
    back = pyproj.Transformer.from_crs(DEGREES, place.system, always_xy=True)
    np.testing.assert_allclose(back.transform(*degrees[0]), (x, y), atol=0.01)


@pytest.mark.parametrize("at", [{"crs": UTM, "transform": NORTH_UP}, {}])
def test_nodata_and_scale_are_those_of_the_file(tmp_path: Path, at: dict[str, Any]) -> None:
    raw = slope().astype(np.int16)
    raw[3, 5] = -9999
    path = write(tmp_path / "m.tif", raw, nodata=-9999, scale=(0.1, 20.0), **at)
    image = np.rot90(read(path, resolution=0.5).values)
    assert np.argwhere(np.isnan(image)).tolist() == [[3, 5]]
    assert image[2, 7] == pytest.approx(0.1 * 207 + 20)


def test_unmeasured_values_stay_where_they_are(tmp_path: Path) -> None:
    raw = slope()
    raw[20:30, 40:50] = -9999
    at = {"crs": DEGREES, "transform": IN_DEGREES, "nodata": -9999}
    found = read(write(tmp_path / "m.tif", raw, **at))
    assert np.nanmin(found.values) >= 0  # no -9999 in any mean
    lon, lat = IN_DEGREES @ (45, 25)
    hole = (placed(found).metres(np.array([[lon, lat]]))[0] / found.resolution).astype(int)
    assert np.isnan(found.values[tuple(hole)])
    assert np.isnan(found.values[5:-5, 5:-5]).sum() == pytest.approx(100 * 0.6 / 0.556, rel=0.2)


def test_a_map_in_degrees_is_resampled_to_the_resolution_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tif", slope(), crs=DEGREES, transform=IN_DEGREES)
    assert read(path, resolution=2.0).resolution == 2.0
    assert read(path).resolution == pytest.approx(0.556, abs=0.001)  # 5e-6 degrees of latitude
    assert 4 * read(path, resolution=1.0).values.size > read(path, resolution=0.5).values.size


def test_a_band_has_a_number_or_a_name(tmp_path: Path) -> None:
    at = {"crs": UTM, "transform": NORTH_UP, "names": ("red", "heat")}
    path = write(tmp_path / "m.tif", slope(), slope() + 7, **at)
    for key in (2, "2", "heat"):
        assert read(path, key=key).values.min() == 7
    with pytest.raises(ConfigError, match=r"raster\.key: .*red, heat"):
        read(path)
    with pytest.raises(ConfigError, match=r"raster\.key: .*'3'.*red, heat"):
        read(path, key="3")


@pytest.mark.parametrize("at", [{}, {"transform": NORTH_UP}])
def test_a_map_without_a_coordinate_system_has_no_place(tmp_path: Path, at: dict[str, Any]) -> None:
    path = write(tmp_path / "m.tif", slope(), **at)
    assert is_geotiff(path) == bool(at)
    found = read(path, resolution=2.0)
    assert (found.resolution, found.place) == (2.0, None)


@pytest.mark.parametrize("bigtiff", ["YES", "NO"])
@pytest.mark.parametrize("endianness", ["BIG", "LITTLE"])
def test_all_kinds_of_geotiff_are_recognised(tmp_path: Path, bigtiff: str, endianness: str) -> None:
    kind = {"bigtiff": bigtiff, "endianness": endianness}
    path = write(tmp_path / "m.tif", slope(), crs=UTM, transform=NORTH_UP, **kind)
    assert is_geotiff(path)
    found = read(path)
    np.testing.assert_array_equal(found.values, np.rot90(slope(), -1))
    assert (found.resolution, placed(found).corner) == (0.5, (691000, 5335000 - 30))


@pytest.mark.parametrize(
    ("image", "bad", "resolution", "key"),
    [
        (slope(), {"crs": 'LOCAL_CS["site",UNIT["metre",1]]'}, None, "path"),  # not on Earth
        (slope(), {"transform": Affine(0, 0, 5, 0, 0, 5)}, None, "path"),  # pixels without extent
        (slope().astype(np.complex64), {}, None, "path: .*complex64"),
        (slope(), {}, 1.2, r"resolution: 1\.2 .*0\.5 m"),  # contradicts the file
        (slope(), {"crs": DEGREES, "transform": IN_DEGREES}, 1e-3, "resolution: 0.001 .*60 x 80"),
        (slope(), {"crs": None}, None, "resolution"),
    ],
)
def test_maps_that_do_not_serve_are_refused(
    tmp_path: Path, image: np.ndarray, bad: dict[str, Any], resolution: float | None, key: str
) -> None:
    path = write(tmp_path / "m.tif", image, **{"crs": UTM, "transform": NORTH_UP, **bad})
    with pytest.raises(ConfigError, match=rf"raster\.{key}.*") as caught:
        read(path, resolution=resolution)
    assert "m.tif" in str(caught.value)


def test_a_torn_file_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = write(tmp_path / "m.tif", slope(), crs=UTM, transform=NORTH_UP).read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / "m.tif").write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"sensor\.simulation\.raster\.path: "):
            read(tmp_path / "m.tif", resolution=0.5)
    assert capfd.readouterr().err == ""


def test_without_the_extra_a_geotiff_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.tif", slope(), crs=UTM, transform=NORTH_UP)
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(ConfigError, match=r"pip install 'marl_framework\[geo\]'"):
        read(path, resolution=0.5)
