"""The command line without training: classical planners, and a trained team over a real map."""

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from marl_framework import history
from marl_framework.config.loading import load_config
from marl_framework.config.mission import RasterConfig
from marl_framework.deployment import flights
from marl_framework.deployment.flights import UprightStreams
from marl_framework.evaluation import comparison
from marl_framework.fly import main as fly_main
from marl_framework.main import main
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.terrains.raster_file import read_raster
from marl_framework.runs.folder import RunFolder
from tests.running import run_main
from tests.small import small_config
from tests.teams import save_team

Run = Callable[..., int]
DEPLOY = ("--set", "experiment.missions.mission_mode=deployment")


@pytest.fixture
def fly(tmp_path: Path) -> Run:
    """Fly params_test.yaml into tmp_path/runs/NAME; returns the exit code."""

    return partial(run_main, tmp_path)


@pytest.fixture
def measured(tmp_path: Path) -> tuple[str, ...]:
    """Arguments that fly a map whose values say where they are; a corner is not measured."""
    x, y = np.meshgrid(np.arange(70), np.arange(60), indexing="ij")
    values = (np.sin(x / 7) + np.cos(y / 9)).astype(np.float32)
    values[:5, :5] = np.nan
    np.save(tmp_path / "map.npy", values)
    settings = ("kinds=[raster]", f"raster.path={tmp_path / 'map.npy'}", "raster.resolution=2.0")
    return tuple(a for s in settings for a in ("--set", f"sensor.simulation.{s}"))


@pytest.fixture
def team(tmp_path: Path) -> str:
    """A checkpoint of params_test.yaml's networks, with 2 UAVs."""
    return str(save_team(tmp_path / "team.pt", load_config("params_test.yaml")))


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("policy", "key", "planner"),
    [
        ("policy=random", "random.missions", "random"),
        ("policy=coverage", "coverage.missions", "coverage"),
        ("policy=information_gain", "information_gain.missions", "information_gain"),
        ("missions.type=lawnmower", "lawnmower.trials", "coverage"),  # former names
    ],
)
def test_a_policy_is_flown(policy, key, planner, fly, tmp_path, capsys) -> None:
    settings = ("--set", f"experiment.{policy}")
    assert fly("t", *settings, "--set", f"experiment.baselines.{key}=3") == 0
    run = tmp_path / "runs" / "t"
    bookkeeping = {".lock", "uncommitted.diff"}  # the diff is there where the checkout is dirty
    assert {path.name for path in run.iterdir()} - bookkeeping == {
        *("config.yaml", "environment.json", "summary.json", "results.json", "table.txt"),
        "status.json",
        *("curves.png", f"mission_{planner}.png", f"film_{planner}.png", f"mission_{planner}.gif"),
    }
    found = read_json(run / "results.json")
    assert len(found["policies"][planner]["f1"]) == 3
    assert found["settings"]["seed"] == load_config("params_test.yaml").environment.seed
    summary = read_json(run / "summary.json")
    assert summary["results"][planner]["f1"]["mean"] == found["summary"][planner]["f1"]["mean"]
    assert "F1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "named"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (FileNotFoundError(2, "No such file or directory", "my_map.bin"), 1, "my_map.bin"),
    ],
)
def test_a_flight_that_fails_leaves_its_name_free(
    error, code, named, fly, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(comparison, "evaluate", Mock(side_effect=error))
    assert fly("t", "--set", "experiment.policy=random") == code
    said = capsys.readouterr().err
    assert named in said
    assert "logging.directory" not in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("module", [comparison, flights])
def test_a_drawing_that_fails_leaves_what_was_flown(
    module, fly, measured, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(module, "mission_gif", Mock(side_effect=KeyboardInterrupt()))
    deploy = (*DEPLOY, *measured) if module is flights else ()
    assert fly("t", *deploy, "--set", "experiment.policy=random") == 130
    run = tmp_path / "runs" / "t"
    assert read_json(run / "summary.json")["results"]
    data = "mission_000/belief.npy" if deploy else "results.json"
    assert (run / data).is_file()
    assert str(run) in capsys.readouterr().err
    assert history.main(["--runs", str(run.parent), "list"]) == 0
    assert capsys.readouterr().out.startswith("t: finished, began ")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(flights.Deployment, "write"), (RunFolder, "write_summary"), (flights.Deployment, "draw")],
)
def test_a_full_disk_is_one_line_with_the_folder(
    owner, name, fly, measured, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(owner, name, Mock(side_effect=OSError(28, "No space left on device")))
    assert fly("t", *DEPLOY, *measured, "--set", "experiment.policy=random") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: logging.directory: {tmp_path / 'runs' / 't'} ")
    assert "No space left on device" in error
    assert "--resume" not in error
    assert (tmp_path / "runs").exists() is (name == "draw")


def test_a_name_in_use_is_resumed_only_where_a_training_may_be(fly, refused) -> None:
    assert fly("t", "--set", "experiment.policy=random") == 0
    assert "--resume" not in refused(fly, "t", "--set", "experiment.policy=random")


@pytest.mark.parametrize("command", ["fly", "main"])
def test_what_is_not_a_training_is_never_resumed(command, fly, tmp_path, refused) -> None:
    options: tuple[str, ...] = ()
    if command == "fly":
        flown = ("--dry-run", "--config", "params_test.yaml", "--policy", "random")
        where = f"logging.directory={tmp_path / 'runs'}"
        given = ("--separation", "0", "--run-name", "t", "--set", where)
        assert fly_main([*flown, *given, "--set", "compute.device=cpu"]) == 0
    else:
        assert fly("t", "--set", "experiment.policy=random") == 0
        options = ("--allow-changed", "experiment.policy")
    run = tmp_path / "runs" / "t"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    error = refused(fly, "t", "--resume", *options)
    assert f"{run} is not a training; choose another name" in error
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("drawn")
def test_a_deployment_hands_over_beliefs_and_waypoints(fly, measured, team, tmp_path) -> None:
    more = ("--set", "experiment.missions.n_agents=3", "--missions", "2", "--html")
    assert fly("t", *DEPLOY, *measured, "--checkpoint", team, *more) == 0
    run = tmp_path / "runs" / "t"
    config = load_config(run / "config.yaml")
    summary = read_json(run / "summary.json")["results"]
    assert [mission["folder"] for mission in summary["missions"]] == ["mission_000", "mission_001"]
    for mission in summary["missions"]:
        folder = run / mission["folder"]
        assert {path.name for path in folder.iterdir()} == {
            *("belief.npy", "belief.tiff", "completed.npy", "completed.tiff"),
            *("waypoints.csv", "waypoints.json"),
            *("mission.png", "film.png", "mission.gif", "mission.html"),
        }
        belief = np.load(folder / "belief.npy")
        assert belief.shape == config.geometry.map_shape
        assert belief.dtype == np.float32
        assert belief.std() > 0.1
        # Our own reader of maps finds the same array in the image.
        for name in ("belief", "completed"):
            raster = RasterConfig(path=str(folder / f"{name}.tiff"), resolution=1.0)
            values = np.load(folder / f"{name}.npy")
            np.testing.assert_array_equal(read_raster(raster).values, values)
        lines = (folder / "waypoints.csv").read_text(encoding="utf-8").splitlines()
        rows = list(csv.DictReader(lines))
        assert len(rows) == 3 * (config.missions.episode_length + 1)
        tracks = read_json(folder / "waypoints.json")
        assert "metres" in tracks["coordinate_frame"]
        assert tracks["window_origin_m"] == mission["window_origin_m"]
        points = [
            [track["uav"], k, *point]
            for track in tracks["uavs"]
            for k, point in enumerate(track["positions_m"], start=1)
        ]
        assert [[float(value) for value in row.values()] for row in rows] == points
        flown = np.array(points)[:, 2:]
        assert flown[:, :2].min() >= 0
        assert flown[:, :2].max() <= 50
        assert set(flown[:, 2]) <= set(config.geometry.altitudes)


@pytest.mark.parametrize("file", [None, "params_test.yaml"])
def test_a_team_is_deployed_on_the_mission_it_was_trained_for(
    file: str | None, measured: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONFIG_FILE_PATH", raising=False)
    runs = f"logging.directory={tmp_path / 'runs'}"
    mission = ["experiment.missions.n_agents=3", "experiment.constraints.cost.limit=40", runs]
    # A terrain and a place of its own, which the deployment does not take.
    trained = [*mission, "sensor.simulation.raster.threshold=p90", "deployment.altitudes=ground"]
    save_team(tmp_path / "trained.pt", load_config("params_test.yaml", trained))
    given = () if file is None else ("--config", file, "--set", runs)
    arguments = ("--checkpoint", str(tmp_path / "trained.pt"), "--run-name", "t", "--device", "cpu")
    assert main([*given, *DEPLOY, *measured, *arguments]) == 0
    flown = load_config(tmp_path / "runs" / "t" / "config.yaml")
    found = (flown.experiment.missions.n_agents, flown.experiment.constraints.cost.limit)
    assert found == ((3, 40) if file is None else (2, None))
    assert flown.sensor.simulation.raster.threshold == "p60"
    assert flown.deployment.altitudes == "home"


def test_a_training_takes_no_team(fly: Run, team: str, refused: Callable[..., str]) -> None:
    assert "mission_mode" in refused(fly, "t", "--checkpoint", team)


def test_windows_lie_where_the_summary_says(measured: tuple[str, ...], tmp_path: Path) -> None:
    settings = [argument for argument in measured if argument != "--set"]
    config = load_config("params_test.yaml", [*settings, "sensor.simulation.raster.threshold=0.2"])
    env = MissionEnvironment(config, 5, "cpu", "deployment")
    streams = UprightStreams(env, 3, "deployment")
    draws = streams.draw_reset().terrain
    truth, origins = env.terrain.build(draws), env.terrain.window_origins(draws)
    assert origins is not None
    values = np.load(tmp_path / "map.npy")
    for e, (x, y) in enumerate(origins.tolist()):
        window = values[round(x / 2) : round(x / 2) + 25, round(y / 2) : round(y / 2) + 25]
        at = [[int((c + 0.5) * 25 / n) for c in range(n)] for n in config.geometry.map_shape]
        nearest = window[np.ix_(*at)] > 0.2
        assert (truth[e].numpy() == nearest).mean() > 0.95
        assert [x % 2, y % 2] == [0, 0]  # whole pixels
    assert origins.unique(dim=0).shape[0] == 5


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--checkpoint"),
        (["--checkpoint", "nowhere.pt"], "nowhere.pt"),
        (["--checkpoint", "{team}", "--set", "sensor.simulation.kinds=[band]"], "simulation.kinds"),
        (["--checkpoint", "{team}", "--missions", "0"], "--missions 0"),
        (["--checkpoint", "{team}", "--profile", "1"], "--profile 1"),
        (["--checkpoint", "{team}", "--set", "experiment.policy=random"], "experiment.policy"),
        (["--checkpoint", "{team}", "--set", "environment.x_dim=150"], "150 x 50 m"),
        (["--checkpoint", "pretrained:predictor"], "networks.predictor"),
        (["--checkpoint", "{team}", "--set", "experiment.constraints.num_actions=9"], "num_action"),
        (["--checkpoint", "{team}", "--set", "experiment.uav.crash_rate=0.1"], "uav.crash_rate"),
    ],
)
def test_a_bad_deployment_is_one_line_and_leaves_nothing(
    arguments, named, fly, measured, team, tmp_path, refused
) -> None:
    given = [text.format(team=team) for text in arguments]
    assert named in refused(fly, "t", *DEPLOY, *measured, *given)
    assert not (tmp_path / "runs").exists()


def test_a_deployment_is_checked_without_flying(fly, measured, team, tmp_path) -> None:
    assert fly("t", *DEPLOY, *measured, "--checkpoint", team, "--check") == 0
    assert fly("t", "--set", "experiment.policy=random", "--check") == 0
    assert not (tmp_path / "runs").exists()


def test_deployment_draws_apart_from_every_split() -> None:
    config = small_config()
    starts = [
        MissionEnvironment(config, 2, "cpu", split).draw_reset().start
        for split in ("training", "validation", "test", "deployment")
    ]
    assert len({tuple(start.flatten().tolist()) for start in starts}) == 4
