"""Frames rendered from a known map give its cells; frames that do not fit give nothing."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Place, place_at, quiet_rasterio
from marl_framework.config.model import Config
from marl_framework.flying.dry_run import first_difference, fly, make_pilots, simulate
from marl_framework.flying.frame_camera import (
    FrameCamera,
    FrameReader,
    Lens,
    make_lens,
    project,
)
from marl_framework.flying.frames import (
    Frame,
    FrameFolder,
    Pose,
    read_image,
)
from marl_framework.flying.simulated import SimulatedClock, World
from marl_framework.mission.environment import MissionEnvironment
from tests.flying.dry import SEED, config_of, maker
from tests.flying.rendering import HIGH, LOW, render, save, world_to_camera
from tests.small import small_config

PLACE = (3, 3, 1)
SIZE = (320, 240)
WIDE = {"angle": 95.0}
angles = st.floats(-6, 6)


@cache
def small_environment() -> MissionEnvironment:
    return MissionEnvironment(small_config(), 1, "cpu", "test")


def config_with(**camera: Any) -> Config:
    return small_config(flying={"camera": WIDE | camera})


def environment_of(config: Config) -> MissionEnvironment:
    """An environment whose configuration differs from the small one in `flying` alone."""
    environment = copy(small_environment())
    environment.config = config
    return environment


def random_map(config: Config, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(config.geometry.map_shape) < 0.5


def image_of(config: Config, pose: Pose, size: tuple[int, int] = SIZE, seed: int = 0) -> np.ndarray:
    lens = make_lens(config.flying.camera, *size)
    return render(random_map(config, seed), config.geometry.cell_size, pose, lens, size)


def cells_of(environment: MissionEnvironment, place: tuple[int, int, int]) -> Any:
    """The cells of the footprint at a place, as slices of the map."""
    row0, row1, col0, col1 = environment.camera.box_table[place][:4].tolist()
    return np.s_[row0:row1, col0:col1]


def read(config: Config, pose: Pose, image: np.ndarray, place: tuple[int, int, int]) -> Any:
    """The reading of a rendered frame, the cells of the footprint, and what was ignored."""
    environment = environment_of(config)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), "frame", image, pose, 1.0)
        camera = FrameCamera(FrameFolder(Path(folder)), environment, None, SimulatedClock())
        bits = camera.take(place, 0)
    return bits, cells_of(environment, place), camera.ignored


@settings(max_examples=25)
@given(
    place=st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2)),
    shift=st.tuples(*[st.floats(-0.8, 0.8)] * 3),
    roll=angles,
    pitch=angles,
    yaw=st.floats(-360, 360),
    distortion=st.tuples(st.floats(-0.1, 0.2), st.floats(-0.02, 0.05)),
    centre=st.none() | st.tuples(st.floats(150, 170), st.floats(155, 165)),
)
def test_readings_are_the_cells_of_the_map(
    place, shift, roll, pitch, yaw, distortion, centre
) -> None:
    camera = {"distortion": distortion, "principal_point": centre, "angle": 110.0}
    config, size = config_with(**camera), (320, 320)
    x, y, z = (place[0] * 5.0, place[1] * 5.0, (5.0, 10.0, 15.0)[place[2]])
    pose = Pose(x + shift[0], y + shift[1], z + shift[2], roll, pitch, yaw)
    bits, cells, ignored = read(config, pose, image_of(config, pose, size), place)
    assert ignored == {}
    assert np.array_equal(bits, random_map(config)[cells])


@pytest.mark.parametrize("pixels", [40, 60, 120, 400, 800])
def test_readings_of_all_resolutions(pixels: int) -> None:
    config, pose = config_with(), Pose(15.3, 14.8, 10.2, 4.0, -3.0, 33.0)
    bits, cells, _ = read(config, pose, image_of(config, pose, (pixels, pixels)), PLACE)
    truth = random_map(config)
    wrong = bits != truth[cells]
    if pixels >= 120:  # more than two pixels per cell
        assert not wrong.any()
    same = sum(np.roll(truth, (i, j), (0, 1)) == truth for i in (-1, 0, 1) for j in (-1, 0, 1)) == 9
    assert same[cells].any()
    assert not wrong[same[cells]].any()
    assert wrong.mean() < 0.2


def test_a_cell_is_the_mean_of_its_pixels() -> None:
    config, pose = config_with(), Pose(15.3, 14.8, 10.2, 4.0, -3.0, 33.0)
    image = image_of(config, pose, (640, 640))
    noise = np.random.default_rng(0).random(image.shape) < 0.25
    image[noise] = HIGH + LOW - image[noise]
    bits, cells, _ = read(config, pose, image, PLACE)
    assert np.mean(bits != random_map(config)[cells]) < 0.01  # a single pixel errs in 25 %


def test_readings_of_cells_that_are_not_square() -> None:
    config = small_config(pixels=(12, 20), dims=(30.0, 20.0), flying={"camera": {"angle": 100.0}})
    environment, place = MissionEnvironment(config, 1, "cpu", "test"), (2, 3, 1)
    pose = Pose(9.7, 15.4, 10.1, 3.0, -2.0, 200.0)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), "frame", image_of(config, pose), pose, 0.0)
        bits = FrameCamera(FrameFolder(Path(folder)), environment, None, SimulatedClock()).take(
            place, 0
        )
    expected = random_map(config)[cells_of(environment, place)]
    assert expected.shape[0] != expected.shape[1]
    assert np.array_equal(bits, expected)


@settings(max_examples=60)
@given(
    pose=st.builds(
        Pose,
        *[st.floats(-50, 50)] * 2,
        st.floats(2, 100),
        *[st.floats(-30, 30)] * 2,
        st.floats(-360, 360),
    ),
    lens=st.builds(
        Lens,
        st.floats(50, 4000),
        st.tuples(st.floats(0, 4000), st.floats(0, 3000)),
        st.tuples(st.floats(-0.05, 0.3), st.floats(0, 0.1)),
    ),
)
def test_points_are_projected_as_by_opencv(pose: Pose, lens: Lens) -> None:
    # A plain loop over points on the ground, within 30 degrees of the vertical.
    reach = pose.altitude * math.tan(math.radians(30)) / math.sqrt(2)
    steps = np.linspace(-reach, reach, 7)
    points = torch.cartesian_prod(*[torch.from_numpy(steps)] * 2)
    pixels = project(pose, lens, points.float())
    (column, row), rotation = lens.centre, world_to_camera(pose)
    matrix = np.array([[lens.focal, 0, column], [0, lens.focal, row], [0, 0, 1]])
    coefficients = np.array([*lens.distortion, 0, 0])
    for point, pixel in zip(points.tolist(), pixels, strict=True):
        ground = np.array([[pose.x + point[0], pose.y + point[1], 0.0]])
        move = -rotation @ np.array([pose.x, pose.y, pose.altitude])
        expected, _ = cv2.projectPoints(
            ground, cv2.Rodrigues(rotation)[0], move, matrix, coefficients
        )
        error = np.abs(pixel.numpy() - expected.reshape(2)).max()
        assert error < 1e-5 * lens.focal + 2e-3


def test_a_level_camera_sees_east_on_the_right_and_north_above() -> None:
    lens = Lens(100.0, (50.0, 40.0))
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    pixels = project(Pose(7.0, 8.0, 10.0), lens, points)
    assert torch.allclose(pixels, torch.tensor([[50.0, 40.0], [60.0, 40.0], [50.0, 30.0]]))
    pixels = project(Pose(7.0, 8.0, 10.0, yaw=90.0), lens, points)  # looks to the east
    expected = torch.tensor([[50.0, 40.0], [50.0, 30.0], [40.0, 40.0]])
    assert torch.allclose(pixels, expected, atol=1e-4)
    nose_up = project(Pose(7.0, 8.0, 10.0, pitch=5.0), lens, points[:1])
    assert nose_up[0, 1] > 40  # the point below moves down in the image
    right_down = project(Pose(7.0, 8.0, 10.0, roll=5.0), lens, points[:1])
    assert right_down[0, 0] > 50  # it moves to the side that is low


def test_points_that_distortion_folds_back_are_not_seen() -> None:
    lens = Lens(100.0, (50.0, 40.0), (-0.4, 0.0))
    points = torch.tensor([[0.5, 0.0], [15.0, 0.0]])
    pixels = project(Pose(0.0, 0.0, 10.0), lens, points)
    assert torch.isfinite(pixels[0]).all()
    assert pixels[1].isnan().all()  # 1.5 (1 - 0.4 * 2.25) would lie inside the image
    assert Lens(1.0, (0.0, 0.0), (0.1, 0.1)).limit == math.inf
    assert Lens(1.0, (0.0, 0.0), (-0.4, 0.0)).limit == pytest.approx(1 / 1.2)


def test_points_behind_the_camera_are_not_seen() -> None:
    pose = Pose(0.0, 0.0, 10.0, pitch=60.0)
    pixels = project(pose, Lens(100.0, (50.0, 40.0)), torch.tensor([[0.0, -100.0], [0.0, 0.0]]))
    assert pixels.isnan().any(1).tolist() == [True, False]


GOOD = Pose(15.0, 15.0, 10.0, 0.0, 0.0, 20.0)
REFUSED: dict[str, Any] = {
    "before arrival": {"time": 9.9},
    "place": {"pose": GOOD._replace(x=17.1)},
    "tilt": {"pose": GOOD._replace(roll=8.0, pitch=8.0)},
    "view": {"camera": {"angle": 60.0}},
    "undecided pixels": {"camera": {"bands": (0, 1), "threshold": 0.0}, "black": True},
    "missing band": {"camera": {"bands": (3,)}},
    "unknown location of the map": {"facts": {"latitude": 1.0, "longitude": 2.0}},
    "unreadable image": {"content": b"not an image"},
    "incomplete JSON": {"json": '{"time": 11, "x": 15, "y": 15, "altitude": 10, "roll": 0'},
    "no image": {"content": None},
    "detector: wrong shape": {"camera": {"detector": "tests.flying.test_frame_camera.Flat"}},
    "detector: ZeroDivisionError: in two lines": {
        "camera": {"detector": "tests.flying.test_frame_camera.Broken"}
    },
}


class Flat:
    def __init__(self, config: Config) -> None:
        pass

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return image.reshape(-1)


class Broken(Flat):
    def __call__(self, image: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("in\ntwo lines")


class Slow(Flat):
    clock: SimulatedClock

    def __call__(self, image: np.ndarray) -> np.ndarray:
        self.clock.advance(1.0)
        return super().__call__(image)


class Green(Flat):
    def __call__(self, image: np.ndarray) -> np.ndarray:
        return image[..., 1] / 255


@pytest.mark.parametrize("reason", [None, *REFUSED])
def test_frames_that_do_not_fit_are_ignored(tmp_path: Path, reason: str | None) -> None:
    case = REFUSED.get(reason or "", {})
    config = config_with(**case.get("camera", {}))
    environment, clock = environment_of(config), SimulatedClock()
    clock.advance(10.0)
    camera = FrameCamera(FrameFolder(tmp_path), environment, None, clock)
    assert camera.take(PLACE, 4) is None
    clock.advance(1.0)
    assert camera.take(PLACE, 4) is None
    pose = case.get("pose", GOOD)
    image = np.zeros((240, 320, 3), np.uint8) if case.get("black") else image_of(config, pose)
    save(tmp_path, "frame", image, pose, case.get("time", 10.0), **case.get("facts", {}))
    if "content" in case:
        (tmp_path / "frame.png").unlink()
    if case.get("content"):
        (tmp_path / "frame.png").write_bytes(case["content"])
    if "json" in case:
        (tmp_path / "frame.json").write_text(case["json"])
    bits = camera.take(PLACE, 4)
    assert camera.ignored == ({} if reason is None else {reason: 1})
    assert (bits is None) == (reason is not None)
    assert camera.take(PLACE, 4) is None  # each frame is judged once
    assert camera.ignored.total() == (reason is not None)


def test_a_slow_detector_reads_a_frame_at_a_time(tmp_path: Path) -> None:
    config = config_with(detector="tests.flying.test_frame_camera.Slow")
    Slow.clock = clock = SimulatedClock()
    camera = FrameCamera(FrameFolder(tmp_path), environment_of(config), None, clock)
    for number in range(2):
        save(tmp_path, f"frame{number}", image_of(config, GOOD), GOOD, 0.0)
    for ignored in (1, 2):  # of the wrong shape
        assert camera.take(PLACE, 4) is None
        assert camera.ignored.total() == ignored


def test_endings_may_be_in_upper_case(tmp_path: Path) -> None:
    config = config_with()
    camera = FrameCamera(FrameFolder(tmp_path), environment_of(config), None, SimulatedClock())
    save(tmp_path, "frame", image_of(config, GOOD), GOOD, 0.0)
    (tmp_path / "frame.png").rename(tmp_path / "frame.PNG")
    assert camera.take(PLACE, 4) is not None


def test_json_that_is_nested_too_deeply_is_ignored(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "frame.png"), np.zeros((4, 4), np.uint8))
    (tmp_path / "frame.json").write_text("[" * 100_000)
    ignored = Counter[str]()
    assert list(FrameFolder(tmp_path).new(ignored)) == []
    assert ignored == {"incomplete JSON": 1}


def test_a_frame_that_shows_a_part_of_the_footprint_is_ignored() -> None:
    # At the edge of the map only the part of the footprint on the map must be in view.
    config = config_with(position_tolerance=10.0)
    for x, seen in ((0.0, True), (-9.0, False), (6.0, True)):
        pose = Pose(x, 15.0, 10.0)
        bits, cells, _ = read(config, pose, image_of(config, pose), (0, 3, 1))
        assert (bits is not None) == seen
        if seen:
            assert np.array_equal(bits, random_map(config)[cells])


def test_the_first_frame_that_fits_is_read(tmp_path: Path) -> None:
    config = config_with()
    environment, clock = environment_of(config), SimulatedClock()
    camera = FrameCamera(FrameFolder(tmp_path), environment, None, clock)
    for name, seed, shift in (("b", 1, 0.0), ("a", 2, 9.0), ("c", 3, 0.0)):
        pose = GOOD._replace(x=GOOD.x + shift)
        save(tmp_path, name, image_of(config, pose, seed=seed), pose, 0.0)
    bits = camera.take(PLACE, 0)
    assert np.array_equal(bits, random_map(config, 1)[cells_of(environment, PLACE)])
    assert camera.ignored == {"place": 1}
    clock.advance(5.0)
    assert camera.take(PLACE, 1) is None
    assert camera.ignored == {"place": 1, "before arrival": 1}


UTM = Place("EPSG:32632", (400_000.0, 5_500_000.0))


@pytest.mark.parametrize("place", [UTM, place_at(-33.9, 18.4)])
def test_frames_in_degrees_lie_where_the_map_says(tmp_path: Path, place: Place) -> None:
    pyproj = pytest.importorskip("pyproj")
    pose = Pose(120.0, 340.0, 30.0, 1.0, 2.0, 50.0)
    longitude, latitude = place.degrees([[pose.x, pose.y]])[0]
    turn = pyproj.Proj(place.system).get_factors(longitude, latitude).meridian_convergence
    north = pose._replace(yaw=pose.yaw + turn)  # from true north
    image = np.zeros((2, 2), np.uint8)
    save(tmp_path, "f", image, north, 0.0, latitude=latitude, longitude=longitude)
    (frame,) = FrameFolder(tmp_path).new(Counter())
    assert frame.pose(place) == pytest.approx(pose, abs=1e-4)
    assert abs(turn) > 0.5 or place is not UTM


facts = st.dictionaries(
    st.sampled_from(
        ["time", "x", "y", "latitude", "longitude", "altitude", "roll", "pitch", "yaw"]
    ),
    st.one_of(st.floats(), st.integers(), st.none(), st.text(max_size=3), st.booleans()),
)


@settings(max_examples=100)
@given(
    content=st.one_of(facts, st.lists(st.integers(), max_size=2), st.integers()),
    image=st.binary(max_size=40),
    suffix=st.sampled_from([".png", ".jpg", ".tif", ".npy"]),
)
def test_damaged_files_give_no_reading(content: Any, image: bytes, suffix: str) -> None:
    config = config_with()
    defaults = {"time": 0, "altitude": 10, "roll": 0, "pitch": 0, "yaw": 0, "x": 15, "y": 15}
    if isinstance(content, dict):
        content = defaults | content
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"f{suffix}").write_bytes(image)
        (Path(folder) / "f.json").write_text(json.dumps(content))
        camera = FrameCamera(
            FrameFolder(Path(folder)), environment_of(config), UTM, SimulatedClock()
        )
        assert camera.take(PLACE, 0) is None
    assert camera.ignored.total() == 1


@pytest.mark.parametrize("where", [(89.99999, 8.5), (91.0, 8.5), (-40.0, 190.0), (1e300, -1e300)])
def test_frames_far_from_the_map_are_ignored(tmp_path: Path, where: tuple[float, float]) -> None:
    config, (latitude, longitude) = config_with(), where
    image = image_of(config, GOOD)
    save(tmp_path, "frame", image, GOOD, 0.0, latitude=latitude, longitude=longitude)
    camera = FrameCamera(FrameFolder(tmp_path), environment_of(config), UTM, SimulatedClock())
    assert camera.take(PLACE, 0) is None
    assert set(camera.ignored) <= {"outside the map's coordinate system", "place"}
    assert camera.ignored.total() == 1


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("bands", [2, 3, 4, 5])
def test_bands_of_a_tiff_are_as_written(tmp_path: Path, dtype: str, bands: int) -> None:
    """OpenCV would take the fourth of four bands for opacity, and one of three 16-bit bands."""
    rasterio = pytest.importorskip("rasterio")
    values = np.arange(bands * 12, dtype=dtype).reshape(bands, 3, 4)
    size = {"height": 3, "width": 4, "count": bands, "dtype": dtype}
    with quiet_rasterio(), rasterio.open(tmp_path / "f.tif", "w", driver="GTiff", **size) as file:
        file.write(values)
    assert np.array_equal(read_image(tmp_path / "f.tif"), np.moveaxis(values, 0, -1))


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
@pytest.mark.parametrize("bands", [1, 3, 4])
def test_images_have_red_first(tmp_path: Path, suffix: str, bands: int) -> None:
    image = np.random.default_rng(0).integers(0, 2**16, (5, 7, bands)).astype(np.uint16)
    path = tmp_path / f"image{suffix}"
    if suffix == ".npy":
        np.save(path, image)
    else:
        order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[bands]
        cv2.imwrite(str(path), image[..., order])  # OpenCV takes blue first
    assert np.array_equal(read_image(path), image)


def detect(image: np.ndarray, **camera: Any) -> np.ndarray:
    reader = FrameReader(config_with(**camera))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.npy"
        np.save(path, np.broadcast_to(image, (240, 320, len(image))))
        frame = Frame(path, {})
        return reader.read(frame, GOOD, (14.0, 14.0), (2, 2))[0, 0]


@pytest.mark.parametrize(
    ("image", "camera", "expected"),
    [
        ([129.0], {}, True),
        ([128.0], {}, False),
        ([127.0], {"above": False}, True),
        ([0.0, 0.0, 7.0], {"bands": (2,), "threshold": 6.5}, True),
        ([30.0, 70.0], {"bands": (1, 0), "threshold": 0.39}, True),
        ([30.0, 70.0], {"bands": (0, 1), "threshold": 0.0}, False),
        ([0.0, 200.0], {"detector": "tests.flying.test_frame_camera.Green"}, True),
        ([200.0, 100.0], {"detector": "tests.flying.test_frame_camera.Green"}, False),
    ],
)
def test_detectors(image: list[float], camera: dict[str, Any], expected: bool) -> None:
    assert detect(np.array(image), **camera) == expected


def test_a_missing_detector_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"flying\.camera\.detector"):
        FrameReader(config_with(detector="tests.flying.missing.Detector"))
    with pytest.raises(ConfigError, match=r"flying\.camera\.detector.*ZeroDivisionError"):
        FrameReader(config_with(detector="tests.custom_parts.Broken"))


class FilmedWorld(World):
    """A world in which cameras take frames, which must give the simulator's readings."""

    def film(self, folder: Path) -> None:
        self.folders = [folder / f"uav{uav}" for uav in range(self.environment.n_agents)]
        for folder in self.folders:
            folder.mkdir()
        self.rng = np.random.default_rng(0)
        self.cameras = [
            FrameCamera(FrameFolder(folder), self.environment, None, self.clock)
            for folder in self.folders
        ]

    def read(self, uav: int, place: tuple[int, int, int], move: int) -> Any:
        camera = self.cameras[uav]
        assert camera.take(place, move) is None  # no frame yet
        metres = self.environment.lattice.metres(torch.tensor(place)).numpy()
        roll, pitch, yaw = self.rng.uniform((-4, -4, 0), (4, 4, 360)).tolist()
        pose = Pose(*(metres + self.rng.uniform(-0.5, 0.5, 3)).tolist(), roll, pitch, yaw)
        config, size = self.environment.config, (160, 160)
        lens, truth = make_lens(config.flying.camera, *size), self.start.truth[0].numpy()
        image = render(truth, config.geometry.cell_size, pose, lens, size)
        save(self.folders[uav], f"{move:03}", image, pose, self.clock.now())
        bits = camera.take(place, move)
        assert np.array_equal(bits, super().read(uav, place, move))
        return bits


def test_a_team_with_cameras_flies_as_the_simulator_without_errors(tmp_path: Path) -> None:
    table = {5.0: 1e-6, 15.0: 1e-6}  # so rare that the simulator draws no error
    config = config_of(
        tmp_path, sensor={"model": {"table": table}}, flying={"camera": {"angle": 105.0}},
        agents=2, pixels=(12, 12), budget=5, uav={"communication_range": 15.0, "failure_rate": 0.3},
    )  # fmt: skip
    make = maker("information_gain", config, tmp_path)
    world = FilmedWorld(MissionEnvironment(config, 1, "cpu", "test"), SEED)
    world.film(tmp_path)
    flown = fly(world, make_pilots(world, make))
    simulated = simulate(world, make(world.environment))
    assert first_difference(flown, simulated) is None
    assert [camera.ignored for camera in world.cameras] == [{}, {}]
