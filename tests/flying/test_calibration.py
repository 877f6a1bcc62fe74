"""Calibration counts the errors of readings over known ground, and writes the sensor's table."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from scipy.stats import binomtest

from marl_framework.calibrate import main
from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Place, place_at
from marl_framework.config.loading import dump_config, load_config
from marl_framework.config.model import Config
from marl_framework.flying import calibration
from marl_framework.flying.calibration import Calibration, Count, calibrate, report, wilson
from marl_framework.flying.frame_camera import make_lens
from marl_framework.flying.frames import Pose
from tests.flying.rendering import render, save
from tests.small import small_config

RATES = {5.0: (0.02, 0.01), 10.0: (0.1, 0.2), 15.0: (0.3, 0.25)}
"""Miss and false alarm by altitude."""
SIDES = {5.0: 12, 10.0: 24, 15.0: 36}
SIZE = (150, 150)
ORIGIN = (47.4, 8.5)


def known_ground(folder: Path, config: Config, frames: int = 5, place: Place | None = None) -> Any:
    """Write a known map and frames with errors; return the errors that each frame must show."""
    rng = np.random.default_rng(1)
    truth = rng.random((90, 80)) < 0.4
    np.save(folder / "truth.npy", truth.astype(np.float32))
    (folder / "frames").mkdir()
    cell, lens = config.geometry.cell_size, make_lens(config.flying.camera, *SIZE)
    expected: dict[float, list[tuple[int, int, int, int]]] = {}
    for altitude, (miss, false_alarm) in RATES.items():
        for k in range(frames):
            flips = rng.random(truth.shape) < np.where(truth, miss, false_alarm)
            at = rng.uniform(11, 27, 2)
            pose = Pose(*at.tolist(), altitude + rng.uniform(-0.4, 0.4), *rng.uniform(-4, 4, 3))
            image = render(truth ^ flips, cell, pose, lens, SIZE)
            where = {}
            if place is not None:
                longitude, latitude = place.degrees([pose[:2]])[0].tolist()
                where = {"latitude": latitude, "longitude": longitude}
            save(folder / "frames", f"{altitude:g}_{k}", image, pose, 0.0, **where)
            row, column = (math.floor(pose[i] / cell[i] - SIDES[altitude] / 2) for i in (0, 1))
            window = np.s_[row : row + SIDES[altitude], column : column + SIDES[altitude]]
            roi, wrong = truth[window], flips[window]
            counts = (wrong & roi).sum(), roi.sum(), (wrong & ~roi).sum(), (~roi).sum()
            expected.setdefault(altitude, []).append(tuple(map(int, counts)))
    return expected


def config_with(folder: Path, **changes: Any) -> Config:
    raster = {"path": str(folder / "truth.npy"), "threshold": 0.5}
    raster["resolution"] = small_config().geometry.cell_size[0]
    sections = {"flying": {"camera": {"angle": 95.0}}, "sensor": {"simulation": {"raster": raster}}}
    config = small_config(**{**sections, **changes})
    return config.model_copy(
        update={"sensor": config.sensor.model_copy(update={"pixel": small_config().sensor.pixel})}
    )


@pytest.mark.parametrize("placed", [False, True])
def test_the_errors_of_each_frame_are_counted(tmp_path: Path, placed: bool) -> None:
    deployment = {"deployment": {"origin": ORIGIN}} if placed else {}
    config = config_with(tmp_path, **deployment)
    expected = known_ground(tmp_path, config, place=place_at(*ORIGIN) if placed else None)
    found = calibrate(config, tmp_path / "frames")
    assert found.ignored == {}
    for altitude, counts in expected.items():
        wrong, cells, false, others = zip(*counts, strict=True)
        assert (found.misses[altitude].wrong, found.misses[altitude].cells) == (
            list(wrong), list(cells),
        )  # fmt: skip
        assert found.false_alarms[altitude].wrong == list(false)
        assert found.false_alarms[altitude].cells == list(others)
        for count, truth in zip((found.misses, found.false_alarms), RATES[altitude], strict=True):
            rate = count[altitude].rate()
            assert rate is not None
            assert rate.low < truth < rate.high
            assert rate.high - rate.low < 0.2
        assert found.table()[altitude] == pytest.approx(sum(RATES[altitude]) / 2, abs=0.03)


def test_the_interval_of_one_frame_is_wilsons() -> None:
    for wrong, cells in ((0, 7), (1, 30), (500, 1000), (9, 9)):
        expected = binomtest(wrong, cells).proportion_ci(method="wilson")
        rate = wilson([wrong], [cells])
        assert rate.low == pytest.approx(expected.low, abs=1e-12)
        assert rate.high == pytest.approx(expected.high, abs=1e-12)
        assert (rate.rate, rate.cells) == (wrong / cells, cells)


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_intervals_cover_the_rate_where_frames_differ(spread: float) -> None:
    rng, covered, naive = np.random.default_rng(0), 0, 0
    for _ in range(400):
        rates = np.clip(0.1 + spread * rng.standard_normal(20), 0, 1)
        cells = rng.integers(100, 300, 20)
        wrong = rng.binomial(cells, rates)
        rate = wilson(wrong.tolist(), cells.tolist())
        plain = binomtest(int(wrong.sum()), int(cells.sum())).proportion_ci(method="wilson")
        covered += rate.low <= 0.1 <= rate.high
        naive += plain.low <= 0.1 <= plain.high
    assert covered > 0.9 * 400
    assert (naive < 0.75 * 400) == (spread > 0)


def counts(wrong: int, cells: int) -> dict[float, Count]:
    return {5.0: Count([wrong], [cells]) if cells else Count()}


def test_a_table_has_only_rates_that_a_sensor_may_have() -> None:
    def table(miss: tuple[int, int], false_alarm: tuple[int, int]) -> dict[float, float]:
        return Calibration(counts(*miss), counts(*false_alarm), Counter()).table()

    assert table((0, 100), (0, 100)) == {5.0: 0.001}
    with pytest.raises(ConfigError, match=r"flying\.camera: at 5 m, 90% of the cells are wrong"):
        table((95, 100), (85, 100))
    with pytest.raises(ConfigError, match="--frames: no altitude has readings"):
        table((20, 100), (0, 0))


def test_a_report_is_short_where_every_frame_has_its_own_error() -> None:
    ignored = Counter({f"reason {k}": 1 for k in range(99)})
    assert report(Calibration({}, {}, ignored)).count("reason") < 20


def test_frames_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    known_ground(tmp_path, config, frames=1)
    image, good = np.zeros((150, 150), np.uint8), Pose(20.0, 20.0, 10.0)
    bad = {
        "altitude": good._replace(altitude=12.5),
        "tilt": good._replace(pitch=12.0),
    }
    for reason, pose in bad.items():
        save(tmp_path / "frames", reason, image, pose, 0.0)
    outside = [good._replace(x=3.0), good._replace(y=3.0), good._replace(x=40.0)]
    for k, pose in enumerate([*outside, good._replace(y=35.0)]):
        save(tmp_path / "frames", f"outside{k}", image, pose, 0.0)
    (tmp_path / "frames" / "empty.json").write_text("{}")
    save(tmp_path / "frames", "map", image, good, 0.0, latitude=1.0, longitude=2.0)
    values = np.load(tmp_path / "truth.npy")
    values[80:82, 60] = np.nan
    np.save(tmp_path / "truth.npy", values)
    save(tmp_path / "frames", "hole", image, Pose(39.0, 29.0, 5.0), 0.0)
    found = calibrate(config, tmp_path / "frames")
    assert found.ignored.pop("outside the measured map") == 5
    expected = {"altitude", "tilt", "no image", "unknown location of the map"}
    assert dict(found.ignored) == dict.fromkeys(expected, 1)
    assert report(found).splitlines()[-1].startswith("ignored frames: 1 x ")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command that calibrates."""
    config = config_with(tmp_path, sensor={})
    known_ground(tmp_path, config)
    dump_config(config, tmp_path / "p.yaml")
    cell = config.geometry.cell_size[0]
    frames, truth = str(tmp_path / "frames"), str(tmp_path / "truth.npy")
    given = ["--frames", frames, "--truth", truth, "--config", str(tmp_path / "p.yaml")]
    return [*given, "--threshold", "0.5", "--resolution", f"{cell:.9f}"]


def test_the_command_writes_keys_of_the_params_file(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(words) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["altitude", "frames", "miss", "false", "alarm"]
    text = "\n".join(lines[3:]) + "\n"
    table = yaml.safe_load(text)["sensor"]["model"]["table"]
    assert table == {h: pytest.approx(sum(pair) / 2, abs=0.03) for h, pair in RATES.items()}
    assert main([*words, "--out", str(tmp_path / "sensor.yaml")]) == 0
    assert "sensor:" not in capsys.readouterr().out
    assert (tmp_path / "sensor.yaml").read_text() == text
    (tmp_path / "mine.yaml").write_text("extends: sensor.yaml\nexperiment: {title: mine}\n")
    assert load_config(tmp_path / "mine.yaml").sensor.model.table == table


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("--frames", "missing"), "--frames missing"),
        (("--truth", "missing.npy"), "missing.npy"),
        (("--band", "red"), "raster.key"),
        (("--threshold", "9"), "threshold"),
        (("--threshold", "nan"), "threshold"),
        (("--resolution", "-1"), "raster.resolution"),
        (("--config", "missing.yaml"), "missing.yaml"),
        (("--set", "flying.camera.bands=[]"), "flying.camera.bands"),
        (("--set", "flying.camera.above=false"), "flying.camera"),
        (("--set", "flying.camera.tilt_tolerance=0"), "--frames"),
        (("--out", "missing/sensor.yaml"), "--out"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], refused: Callable[..., str], change: tuple[str, str], named: str
) -> None:
    line = refused(main, [*words, *change])
    assert named in line


@pytest.mark.parametrize("out", ["p.yaml", "truth.npy", "link.yaml"])
def test_its_inputs_are_not_written_over(
    words: list[str], tmp_path: Path, refused: Callable[..., str], out: str
) -> None:
    (tmp_path / "link.yaml").symlink_to(tmp_path / "p.yaml")
    before = (tmp_path / out).read_bytes()
    line = refused(main, [*words, "--out", str(tmp_path / out)])
    assert f"--out {tmp_path / out} is an input" in line
    assert (tmp_path / out).read_bytes() == before


@pytest.mark.parametrize(("out", "named"), [("", "is not a file"), ("no/s.yaml", "does not exist")])
def test_a_bad_path_is_refused_before_measuring(
    words: list[str], tmp_path: Path, refused: Callable[..., str], monkeypatch, out: str, named: str
) -> None:
    monkeypatch.setattr(calibration, "calibrate", pytest.fail)
    assert named in refused(main, [*words, "--out", str(tmp_path / out)])


def test_a_full_disk_leaves_the_earlier_file(
    words: list[str], tmp_path: Path, refused: Callable[..., str], monkeypatch
) -> None:
    (tmp_path / "sensor.yaml").write_text("earlier")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert "No space left" in refused(main, [*words, "--out", str(tmp_path / "sensor.yaml")])
    assert (tmp_path / "sensor.yaml").read_text() == "earlier"


def test_a_percentile_of_the_known_map_is_refused(
    words: list[str], refused: Callable[..., str]
) -> None:
    words.remove("--threshold")
    words.remove("0.5")
    assert "--threshold" in refused(main, words)


def test_help_loads_no_heavy_library() -> None:
    code = "import sys, marl_framework.calibrate; print({'torch', 'cv2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
