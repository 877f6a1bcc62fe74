"""The command flies a team, writes its record, and refuses bad input in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import shapely
import torch

from marl_framework.config.loading import load_config
from marl_framework.flying.options import main
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.terrains.geotiff import read_geotiff
from marl_framework.observations.completion import make_completion
from tests.flying.dry import world_of
from tests.mission.zones import feature, write_zones
from tests.small import small_config
from tests.teams import save_team


def test_a_team_flies_into_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    team = save_team(tmp_path / "team.pt", small_config())
    words = ("--dry-run", "--checkpoint", str(team), "--run-name", "today", "--seed", "3")
    words = (*words, "--separation", "0")
    assert main([*words, "--set", f"logging.directory={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "equal: yes" in printed
    run = tmp_path / "today"
    results = json.loads((run / "summary.json").read_text())["results"]
    assert results["first_difference"] is None
    assert results["team"] == results["simulator"]
    assert [uav["moves"] for uav in results["uavs"]] == [5, 5, 5]
    config = load_config(run / "config.yaml")
    completion = make_completion(config, MissionEnvironment(config, 1, "cpu").lattice)
    assert completion is not None
    for uav, of_uav in enumerate(results["uavs"]):
        assert printed.count(f"UAV {uav + 1}: 5 moves") == 1
        belief = np.load(run / f"uav_{uav + 1}" / "belief.npy")
        assert 0 <= belief.min() < 0.5 < belief.max() <= 1
        completed = np.load(run / f"uav_{uav + 1}" / "completed.npy")
        caution = torch.tensor([of_uav["learned_caution"]])
        expected = completion(torch.tensor(belief[None]), caution)[0]
        np.testing.assert_allclose(completed, expected, atol=1e-6)
        rows = (run / f"uav_{uav + 1}" / "waypoints.csv").read_text().splitlines()
        metres = [5.0 * index for index in of_uav["end"]]
        assert [float(cell) for cell in rows[-1].split(",")[2:]] == [*metres[:2], metres[2] + 5]
    assert (run / "team" / "belief.tiff").exists()
    assert not (run / "mission.html").exists()


def test_uavs_with_other_settings_or_files_fly_another_mission(tmp_path: Path) -> None:
    """Places on the lattice of one would be elsewhere, or closed, for the other."""
    zones = tmp_path / "zones.geojson"

    def number(constraints: object = None, **deployment: object) -> int:
        return world_of(small_config(constraints=constraints or {}, deployment=deployment)).number

    origin = (48.1492, 11.5687)
    assert number(origin=origin, speed=3.0) == number(origin=origin)
    assert number(origin=(origin[0] + 1e-9, origin[1])) == number(origin=origin)  # rounding
    assert len({number(), number(origin=origin), number(origin=(48.1493, 11.5687))}) == 3
    assert number(origin=origin, separation=4.5) != number(origin=origin)
    assert number(origin=origin, pad_distance=12.0) != number(origin=origin)
    numbers = set()
    for side in (25.0, 26.0):
        write_zones(zones, feature(shapely.box(20.0, 20.0, side, side)))
        numbers.add(number({"no_fly_zones": str(zones)}, origin=origin))
    assert len(numbers) == 2


def test_a_uav_that_leaves_before_its_first_reading_is_in_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["--dry-run", "--policy", "information_gain", "--config", "params_fast.yaml", "--of=2"]
    words += ["--set=flying.message_timeout=0.5", f"--set=logging.directory={tmp_path}"]
    assert main([*words, "--run-name", "short"]) == 0
    assert "equal: no, " in capsys.readouterr().out
    results = json.loads((tmp_path / "short" / "summary.json").read_text())["results"]
    assert [uav["moves"] for uav in results["uavs"]] == [15, 0]
    beliefs = [
        np.load(tmp_path / "short" / name / "belief.npy") for name in ("uav_1", "uav_2", "team")
    ]
    assert (beliefs[1] == 0.5).all()  # the prior
    np.testing.assert_array_equal(beliefs[0], beliefs[2])
    assert beliefs[0].max() > 0.9


def test_a_flight_is_replayed_and_watched(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("mcap")
    pytest.importorskip("rasterio")
    team = save_team(tmp_path / "team.pt", small_config())
    words = ["--dry-run", "--checkpoint", str(team), "--run-name", "today", "--html"]
    words += ["--set", "deployment.origin=[47.1,8.2]"]
    assert main([*words, "--set", f"logging.directory={tmp_path}"]) == 0
    run = tmp_path / "today"
    assert "<title>Mission 0: learned" in (run / "mission.html").read_text()
    place = read_geotiff(run / "team" / "belief.tif", "belief.tif", None, None)[2]
    assert place is not None
    assert place.degrees(np.zeros((1, 2)))[0] == pytest.approx([8.2, 47.1])
    capsys.readouterr()
    record = str(run / "flight.mcap")
    assert main(["--replay", str(run)]) == 0
    assert capsys.readouterr().out.endswith("equal: yes\n")
    team.rename(tmp_path / "moved.pt")
    assert main(["--replay", record, "--checkpoint", str(tmp_path / "moved.pt")]) == 0


def test_a_flight_needs_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcap", None)
    words = [*GAIN, "--run-name", "today", "--set", f"logging.directory={tmp_path}"]
    assert main(words) == 0
    output = capsys.readouterr()
    assert "equal: yes" in output.out
    assert "no record of this flight; pip install 'marl_framework[fly]'" in output.err
    assert not (tmp_path / "today" / "flight.mcap").exists()


GAIN = ("--dry-run", "--policy", "information_gain", "--config", "params_test.yaml")
ONE = (*GAIN[1:], "--uav", "1")
MAP = ("kinds=[raster]", "raster.path=matplotlib:jacksboro_fault_dem.npz", "raster.resolution=1.2")
RASTER = tuple(part for text in MAP for part in ("--set", f"sensor.simulation.{text}"))
REAL = (*ONE, "--vehicle", "udpin://127.0.0.1:1", "--set", "experiment.missions.start=random")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (GAIN[1:], "--dry-run"),
        ((*GAIN, "--uav", "1"), "--uav"),
        ((*ONE, "--uav", "0"), "--uav 0"),
        ((*ONE, "--uav", "3", "--of", "2"), "--uav 3"),
        ((*ONE, "--uav", "9"), "--uav 9"),
        ((*ONE, "--time-factor", "0"), "--time-factor"),
        ((*ONE, "--time-factor", "2", "--vehicle", "udpin://127.0.0.1:1"), "--time-factor"),
        ((*ONE, "--separation", "0", "--listen", "nonsense"), "--listen"),
        ((*ONE, "--separation", "0", "--camera", "nonsense"), "--camera"),
        ((*ONE, "--separation", "0", "--vehicle", "udpin://127.0.0.1:1"), "deployment.origin"),
        ((*REAL, "--set", "experiment.constraints.obstacles.number=1"), "obstacles.number"),
        ((*REAL, "--set", "environment.field=random"), "environment.field: not"),
        (("--replay", "missing.mcap"), "missing.mcap"),
        (("--replay", "x" * 300), "--replay x"),
        (("--replay", __file__), "test_fly.py"),
        (("--replay", __file__, "--dry-run"), "--dry-run"),
        (("--replay", str(Path(__file__).parent)), "flying/flight.mcap"),
        (("--replay", __file__, "--seed", "101"), "--seed"),
        (("--replay", __file__, "--separation", "0"), "--separation"),
        (("--replay", __file__, "--set", "logging.directory=."), "--set"),
        (("--replay", __file__, "--html"), "--html"),
        ((*GAIN, "--vehicle", "udpin://127.0.0.1:1"), "--vehicle"),
        ((*ONE, *RASTER, "--vehicle", "udpin://127.0.0.1:1"), "sensor.simulation.kinds: raster"),
        ((*GAIN, "--camera", "folder:."), "--camera"),
        ((*GAIN, "--radio", "tcp/127.0.0.1:1"), "--radio"),
        ((*GAIN, "--listen", "tcp/127.0.0.1:0"), "--listen"),
        ((*GAIN, "--time-factor", "1"), "--time-factor"),
        (("--dry-run",), "--checkpoint"),
        (("--dry-run", "--policy", "oracle"), "--policy"),
        (("--dry-run", "--policy", "nobody"), "--policy"),
        (GAIN[:3], "--config"),
        ((*GAIN, "--seed", "-1"), "--seed"),
        ((*GAIN, "--separation", "nan"), "--separation"),
        ((*GAIN, "--run-name", "a b"), "a b"),
        (("--dry-run", "--checkpoint", "missing.pt"), "missing.pt"),
        (("--dry-run", "--policy", "random", "--config", "missing.yaml"), "missing.yaml"),
        ((*GAIN, "--set", "experiment.missions.n_agents=[2,4]"), "experiment.missions.n_agents"),
        ((*GAIN, "--set", "experiment.uav.crash_rate=0.1"), "experiment.uav.crash_rate"),
        ((*GAIN, "--set", "experiment.uav.delay=1"), "experiment.uav.delay"),
        ((*GAIN, "--set", "experiment.constraints.budget=[3,5]"), "experiment.constraints.budget"),
        ((*GAIN, "--set", "experiment.constraints.cost.limit=99"), "cost.limit"),
    ],
)
def test_bad_input_is_refused(
    refused: Callable[..., str], words: tuple[str, ...], named: str
) -> None:
    assert named in refused(main, list(words))
