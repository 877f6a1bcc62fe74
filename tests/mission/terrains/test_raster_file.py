"""Measured maps: reading files, admissible windows, separate splits, clear errors."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from marl_framework.config.errors import ConfigError
from marl_framework.config.mission import AreaConfig, RasterConfig
from marl_framework.mission.seeding import DEPLOYMENT, SPLITS
from marl_framework.mission.terrains import raster_file as raster_module
from marl_framework.mission.terrains.mixture import Terrain
from marl_framework.mission.terrains.raster import RasterTerrain
from marl_framework.mission.terrains.raster_file import (
    admissible_corners,
    cut_strips,
    find_windows,
    read_raster,
    split_map,
)
from tests.mission.terrains.small_terrains import bumps, over_map, saved

MAP = np.arange(12, dtype=np.float32).reshape(4, 3)  # x first: 4 along x, 3 along y


def settings(path: Path | str, **values: Any) -> RasterConfig:
    return RasterConfig(path=str(path), **{"resolution": 1.0, **values})


# Reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float16, np.float64, bool])
def test_arrays_are_x_first_and_become_float32(tmp_path, dtype) -> None:
    np.save(tmp_path / "a.npy", MAP.astype(dtype))
    found = read_raster(settings(tmp_path / "a.npy", resolution=0.5))
    assert found.values.dtype == np.float32
    assert found.resolution == 0.5
    np.testing.assert_array_equal(found.values, MAP.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [(".png", np.uint8), (".PNG", np.uint16), (".tif", np.uint16), (".tiff", np.float32)],
)
def test_columns_of_an_image_run_along_x_and_its_rows_against_y(tmp_path, suffix, dtype) -> None:
    image = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 300]]).astype(dtype)  # a north-up map
    path = tmp_path / f"flüg{suffix}"
    path.write_bytes(cv2.imencode(suffix.lower(), image)[1].tobytes())
    values = read_raster(settings(path)).values
    assert values.shape == (4, 3)
    assert values[0].tolist() == [9, 5, 1]  # the west column, from south to north
    assert values[:, 0].tolist() == [9, 10, 11, float(image[2, 3])]  # the south row


def test_npz_gives_its_largest_2d_array_or_the_one_asked_for(tmp_path) -> None:
    path = tmp_path / "m.npz"
    objects = np.array([["a", {}]] * 40, object)
    big = np.zeros((3, 3, 3, 3))
    np.savez(path, small=MAP[:2], heat=MAP, cube=big, names=objects, resolution_m=np.float32(1.25))
    largest = read_raster(settings(path, resolution=None))
    np.testing.assert_array_equal(largest.values, MAP)
    assert largest.resolution == 1.25
    np.testing.assert_array_equal(read_raster(settings(path, key="small")).values, MAP[:2])
    assert read_raster(settings(path, resolution=3.0)).resolution == 3.0


def test_sample_data_of_matplotlib_is_an_elevation_map() -> None:
    found = read_raster(settings("matplotlib:jacksboro_fault_dem.npz", key="elevation"))
    assert found.values.shape == (344, 403)
    assert (found.values.min(), found.values.max()) == (236, 1076)


def test_infinite_values_count_as_not_measured(tmp_path) -> None:
    values = MAP.astype(np.float64)
    values[0, 0], values[1, 1], values[2, 2] = np.inf, -np.inf, 1e300
    found = read_raster(settings(saved(tmp_path, values))).values
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 0], [1, 1], [2, 2]]


def _png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def _file(folder: Path, name: str, content: Any) -> str:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        np.save(path, content)
    return str(path)


HEAT = {"heat": MAP}
SHAPE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (999999, 999999), }"
HUGE = b"\x93NUMPY\x01\x00\x76\x00" + SHAPE.ljust(117) + b"\n"
BAD_FILES = [
    ("none.png", None, {}, "path"),
    ("map.jpg", b"x", {}, "path"),
    ("map", b"x", {}, "path"),
    ("text.png", b"hello", {}, "path"),
    ("empty.tif", b"", {}, "path"),
    ("half.tiff", cv2.imencode(".tiff", MAP)[1].tobytes()[:40], {}, "path"),
    ("colour.png", _png(np.ones((4, 4, 3), np.uint8)), {}, "path: .*3 bands"),
    ("alpha.png", _png(np.ones((4, 4, 4), np.uint8)), {}, "path: .*4 bands"),
    ("text.npy", b"hello", {}, "path"),
    ("empty.npy", b"", {}, "path"),
    ("text.npz", b"hello", {}, "path"),
    ("torn.npz", b"PK\x03\x04" + b"\x00" * 60, {}, "path"),
    ("nan.npy", np.full((4, 4), np.nan), {}, "path: .*NaN"),
    ("flat.npy", np.full((4, 4), 7.0), {}, "path: .*7"),
    ("line.npy", np.arange(9.0), {}, r"path: .*\(9,\)"),
    ("cube.npy", np.zeros((3, 3, 3)), {}, r"path: .*\(3, 3, 3\)"),
    ("hollow.npy", np.zeros((0, 5)), {}, r"path: .*\(0, 5\)"),
    ("complex.npy", MAP * 1j, {}, "path: .*complex64"),
    ("words.npy", np.array([["a", "b"]]), {}, "path: .*U1"),
    ("objects.npy", np.array([[1, {}]], object), {}, "path: .*allow_pickle=False"),
    ("huge.npy", HUGE, {}, "path"),
    ("flat.npz", {"a": np.arange(3.0)}, {}, "path: .* a$"),
    ("objects.npz", {"a": np.array([[1, {}]], object)}, {"key": "a"}, "path: .*allow_pickle=False"),
    ("map.npz", HEAT, {"key": "heta"}, "key: .*'heta'.* heat$"),
    ("map.npy", MAP, {"key": "heat"}, "key"),
    ("map.npz", HEAT, {"resolution": None}, "resolution"),
    ("map.npy", MAP, {"resolution": None}, "resolution"),
    *(
        ("bad.npz", {"a": MAP, "resolution_m": value}, {}, "resolution: .*resolution_m")
        for value in (-1.0, np.ones(2), "1 m")
    ),
]


@pytest.mark.parametrize(("name", "content", "values", "named"), BAD_FILES)
def test_bad_files_give_one_line_that_names_file_and_key(
    tmp_path, capfd, name, content, values, named
) -> None:
    path = _file(tmp_path, name, content)
    with pytest.raises(ConfigError, match=rf"^sensor\.simulation\.raster\.{named}") as caught:
        read_raster(settings(path, **values))
    assert name in str(caught.value)
    assert capfd.readouterr() == ("", "")  # OpenCV adds no lines of its own


def test_folders_and_missing_sample_data_are_no_files(tmp_path) -> None:
    (tmp_path / "map.png").mkdir()
    (loop := tmp_path / "loop.npy").symlink_to(loop)
    for path in (tmp_path / "map.png", loop, "matplotlib:nothing.npz", "matplotlib:"):
        with pytest.raises(ConfigError, match=r"raster\.path: "):
            read_raster(settings(path))


@given(st.data())
def test_damaged_files_never_escape_as_another_error(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    name = data.draw(st.sampled_from(["m.npy", "m.npz", "m.tif"]))
    path = Path(_file(folder, name, {"a": MAP} if name == "m.npz" else MAP))
    if name == "m.tif":
        path.write_bytes(cv2.imencode(".tif", MAP)[1].tobytes())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = read_raster(settings(path))
    except ConfigError:
        return
    assert found.values.ndim == 2


# Windows ---------------------------------------------------------------------------------------

MASKS = arrays(bool, st.tuples(st.integers(1, 14), st.integers(1, 14)), elements=st.booleans())


@given(MASKS, st.integers(1, 5), st.integers(1, 5))
def test_admissible_corners_equal_a_loop(unmeasured, p, q) -> None:
    measured = ~unmeasured | (np.indices(unmeasured.shape).sum(0) % 3 > 0)  # sparse gaps
    found = admissible_corners(measured, (p, q))
    rows, cols = max(0, measured.shape[0] - p + 1), max(0, measured.shape[1] - q + 1)
    assert found.shape == (rows, cols)
    for r, c in itertools.product(range(rows), range(cols)):
        assert found[r, c] == measured[r : r + p, c : c + q].all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=14), st.integers(1, 4))
def test_cuts_are_the_best_of_all_cuts(counts, window) -> None:
    length = len(counts) + window - 1

    def score(edges: tuple[int, ...]) -> float:
        held = [sum(counts[a : max(a, b - window + 1)]) for a, b in itertools.pairwise(edges)]
        return min(n / share for n, share in zip(held, (0.6, 0.2, 0.2), strict=True))

    every = itertools.combinations_with_replacement(range(length + 1), 2)
    best = max(score((0, a, b, length)) for a, b in every)
    (first, second), found = cut_strips(np.array(counts), window)
    assert found == pytest.approx(best)
    assert score((0, first, second, length)) == pytest.approx(best)


def test_a_fully_measured_map_is_cut_60_20_20_across_its_longer_axis() -> None:
    measured = np.ones((300, 100), bool)
    strips = split_map(measured, (10, 10))
    assert strips is not None
    edges = [(strips[split][0].start, strips[split][0].stop) for split in SPLITS]
    (begin, first), (second, third), (last, end) = edges
    assert (begin, first, third, end) == (0, second, last, 300)
    windows = [int(admissible_corners(measured[strips[split]], (10, 10)).sum()) for split in SPLITS]
    np.testing.assert_allclose(np.array(windows) / sum(windows), [0.6, 0.2, 0.2], atol=0.01)


@pytest.mark.parametrize("window", [(1, 1), (5, 5), (4, 9), (42, 42)])
def test_three_windows_side_by_side_are_just_enough(window) -> None:
    rows, cols = window
    assert split_map(np.ones((3 * rows, cols), bool), window) is not None
    assert split_map(np.ones((rows, 3 * cols), bool), window) is not None
    assert split_map(np.ones((3 * rows - 1, 3 * cols - 1), bool), window) is None


def test_the_shorter_axis_is_cut_where_the_longer_one_leaves_a_split_without_windows() -> None:
    measured = np.zeros((40, 30), bool)
    measured[3:9] = True  # a corridor across x
    assert split_map(measured, (5, 5)) is not None
    assert split_map(measured, (7, 7)) is None


@given(arrays(bool, (24, 17), elements=st.booleans(), fill=st.just(False)), st.sampled_from(SPLITS))
def test_windows_with_unmeasured_pixels_are_never_flown(tmp_path_factory, gaps, split) -> None:
    values = bumps(24, 17)
    values[gaps] = np.nan
    assume(split_map(~gaps, (4, 4)) is not None)
    path = saved(tmp_path_factory.mktemp("gaps"), values)
    terrain = RasterTerrain(over_map(path, resolution=12.5), torch.device("cpu"), split)
    every = torch.arange(terrain.num_windows)
    assert not bool(terrain.windows(torch.stack((every, every % 8), 1)).isnan().any())


@pytest.mark.parametrize("areas", [[(50, 50)], [(30, 60)], [(50, 50), (50, 100), (30, 20)]])
def test_splits_share_no_pixel_and_cover_every_window_of_their_strip(tmp_path, areas) -> None:
    # Every pixel has its own value; the values that the windows of two splits show never overlap.
    rng = np.random.default_rng(1)
    values = rng.permutation(40 * 30).reshape(40, 30).astype(np.float32)
    values[rng.random(values.shape) < 0.01] = np.nan
    config = over_map(saved(tmp_path, values), areas[0], resolution=10.0)
    if len(areas) > 1:
        listed = tuple(AreaConfig(x_dim=x, y_dim=y) for x, y in areas)
        environment = config.environment.model_copy(update={"area": listed})
        config = config.model_copy(update={"environment": environment})
    seen: dict[str, set[float]] = {split: set() for split in SPLITS}
    for split, (extent, area) in itertools.product(SPLITS, zip(areas, config.areas, strict=True)):
        found = find_windows(area, split)
        p, q = found.pixels
        assert (p, q) == (extent[0] // 10, extent[1] // 10)
        blocks = [found.values[r : r + p, c : c + q] for r, c in found.corners]
        assert blocks
        assert not np.isnan(blocks).any()
        seen[split] |= set(np.stack(blocks).ravel().tolist())
    for one, other in itertools.combinations(SPLITS, 2):
        assert not seen[one] & seen[other]


def test_every_window_is_drawn_and_none_more_often_than_others(tmp_path) -> None:
    terrain = Terrain(over_map(saved(tmp_path, bumps(24, 6)), resolution=10.0), "cpu", "test")
    draws = terrain.draw(4000, torch.Generator().manual_seed(0))
    count = len(find_windows(over_map(tmp_path / "map.npy", resolution=10.0), "test").corners)
    windows, symmetries = (column.bincount() for column in draws.numbers[0].unbind(1))
    assert len(windows) == count
    assert windows.min() > 0.7 * 4000 / count
    assert symmetries.tolist() == pytest.approx([500] * 8, abs=75)


def test_a_huge_list_of_windows_is_thinned_out_evenly(tmp_path, monkeypatch) -> None:
    config = over_map(saved(tmp_path, bumps(60, 20)), resolution=10.0)
    full = find_windows(config, "training").corners
    monkeypatch.setattr(raster_module, "MAX_WINDOWS", 50)
    thin = find_windows(config, "training").corners
    assert len(thin) == 50
    assert {tuple(corner) for corner in thin} <= {tuple(corner) for corner in full}
    assert thin[0].tolist() == full[0].tolist()
    assert thin[-1].tolist() == full[-1].tolist()


@pytest.mark.parametrize(
    ("shape", "extent", "values", "split", "text"),
    [
        # 160 m hold three windows of 53.3 m, which 53 pixels fill.
        ((160, 90), (54, 54), {}, "test", r"path: .*160 x 90 m .*54 x 54 m.* 53 x 53 m"),
        ((40, 40), (50, 50), {}, "test", r"path: .*40 x 40 m .* 13 x 13 m"),
        ((40, 40), (50, 50), {"resolution": 0.1}, "test", r"path: .*4 x 4 m .*no part of it is"),
        ((80, 80), (50, 50), {"resolution": 0.5}, "test", r"path: .*40 x 40 m .* 13 x 13 m"),
        ((40, 40), (50, 50), {"resolution": 60.0}, "test", r"resolution: .*60 m.* 2 x 2 pixels"),
        ((99, 99), (20, 20), {"threshold": 1e4}, "test", r"threshold: 10000 "),
        ((99, 99), (20, 20), {"threshold": -1e4}, "test", r"threshold: -10000 "),
        ((40, 30), (50, 20), {}, DEPLOYMENT, r"path: .*40 x 30 m \(100% measured\)"),
    ],
)
def test_maps_that_do_not_serve_say_what_would(
    tmp_path, shape, extent, values, split, text
) -> None:
    path = saved(tmp_path, bumps(*shape))
    with pytest.raises(ConfigError, match=rf"^sensor\.simulation\.raster\.{text}") as caught:
        Terrain(over_map(path, extent, **values), "cpu", split)
    assert "map.npy" in str(caught.value)


@pytest.mark.parametrize("split", SPLITS)
def test_all_splits_may_fly_the_whole_map(tmp_path, split) -> None:
    path = saved(tmp_path, bumps(60, 50))  # too small for three windows
    whole, deployed = (
        find_windows(over_map(path, whole=True), split),
        find_windows(over_map(path), DEPLOYMENT),
    )
    assert len(whole.corners) == 11
    np.testing.assert_array_equal(whole.corners, deployed.corners)
    np.testing.assert_array_equal(whole.values, deployed.values)
    with pytest.raises(ConfigError, match=r"raster\.whole=true"):
        find_windows(over_map(path), split)


def test_a_mask_needs_a_value_between_its_own(tmp_path) -> None:
    """A percentile may be one of its two values, and nothing lies above the higher one."""
    mask = (bumps(160, 160) > 0).astype(np.float32)
    path = saved(tmp_path, mask)
    with pytest.raises(ConfigError, match=r"raster\.threshold: p60 .* 0\.5$"):
        Terrain(over_map(path, (20, 20)), "cpu", "training")
    Terrain(over_map(path, (20, 20), threshold=0.5), "cpu", "training")


def test_the_size_that_an_error_offers_is_the_largest_that_fits(tmp_path) -> None:
    values = bumps(90, 120)
    values[np.random.default_rng(2).random(values.shape) < 0.003] = np.nan
    path = saved(tmp_path, values)
    with pytest.raises(ConfigError, match=r"environment\.x_dim") as caught:
        Terrain(over_map(path, (60, 40)), "cpu", "training")
    (fit,) = re.findall(r"y_dim to ([\d.]+) x ([\d.]+) m", str(caught.value))
    fit_x, fit_y = map(float, fit)
    assert fit_x / fit_y == pytest.approx(1.5, abs=0.05)
    for split in SPLITS:
        assert len(find_windows(over_map(path, (fit_x, fit_y)), split).corners) > 0
    more = (fit_x + 1, (fit_x + 1) / 1.5)  # one pixel more does not
    with pytest.raises(ConfigError, match=r"raster\.path: "):
        find_windows(over_map(path, more), "test")
