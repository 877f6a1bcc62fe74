"""Exported teams do what the trained one does, in ONNX Runtime, torch.export and NumPy."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from marl_framework import export
from marl_framework.algorithms.rollout import Algorithm
from marl_framework.config.learning import PREDICTED_CHANNELS, ObservationConfig
from marl_framework.config.model import Config
from marl_framework.exporting import exported, portable
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sectors import Sectors
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.prediction import load_predictor
from marl_framework.planners import LearnedPlanner
from marl_framework.planners.team import find_checkpoint, mission_config, trained_team
from marl_framework.runs.checkpoint import load_checkpoint
from tests.small import small_config
from tests.soaking import in_soak
from tests.teams import save_predictor, save_team

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fly_onnx.py"
SURE = 1e-6  # so little noise that no reading is ever wrong


@pytest.fixture(scope="module")
def config() -> Config:
    model = {"table": {5.0: SURE, 10.0: SURE, 15.0: SURE}}
    return small_config(sensor={"pixel": {"number_x": 12, "number_y": 12}, "model": model})


@pytest.fixture(scope="module")
def folder(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    save_team(folder / "team.pt", config)
    assert run(folder, "onnx", "team.onnx", "--observations") == 0
    return folder


@pytest.fixture(scope="module")
def coma(config: Config, folder: Path) -> Algorithm:
    return trained_team(config, find_checkpoint(str(folder / "team.pt")), "cpu")


def run(folder: Path, form: str, out: str, *more: str) -> int:
    given = ["--checkpoint", str(folder / "team.pt"), "--format", form, "--out", str(folder / out)]
    return export.main([*given, *more])


def flight(config: Config, coma: Algorithm, missions: int) -> tuple[Any, ...]:
    """Missions after two moves, what the trained team does there, and what it sees."""
    env = MissionEnvironment(config, missions, "cpu", seed=77)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = LearnedPlanner(coma.act, builder, env.lattice)
    state = env.reset()
    starts = state.positions.clone()
    for _ in range(2):
        env.step(state, planner.act(state, env.generator)[0])
    actions, masks, *_ = planner.act(state, env.generator)
    policy = coma.act(builder.actor(state)).masked_fill(~masks, -torch.inf).softmax(-1)
    return state, actions, masks, policy, builder.actor(state), starts


def assert_flies_alike(fly: Callable[..., Any], flown: tuple[Any, ...], starts: bool) -> None:
    """An exported program has the actions and probabilities of `flight`."""
    state, actions, _, policy, _, begun = flown
    names = ("positions", "t", "heard", "beliefs", "readings")
    given = {name: getattr(state, name).numpy() for name in names}
    found, probabilities = fly(given | ({"starts": begun.numpy()} if starts else {}))
    assert np.array_equal(found, actions)
    np.testing.assert_allclose(probabilities, policy, atol=1e-5, rtol=0)


def opened(file: Path) -> tuple[Callable[..., Any], dict[str, Any]]:
    if file.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(file))
        facts = session.get_modelmeta().custom_metadata_map[exported.FACTS]
        return lambda given: session.run(None, given), json.loads(facts)
    files = {exported.FACTS_FILE: ""}
    program = torch.export.load(file, extra_files=files).module()
    facts = json.loads(files[exported.FACTS_FILE])
    return lambda given: program(*map(torch.from_numpy, given.values())), facts


@torch.no_grad()
@pytest.mark.parametrize(
    ("out", "sees_more"), [("team.onnx", False), *in_soak(("team.onnx", True), ("team.pt2", False))]
)
def test_an_exported_team_equals_the_trained_one(
    out: str, sees_more: bool, config: Config, folder: Path, tmp_path: Path
) -> None:
    if sees_more:
        config = small_config(
            observation={"predicted": True, "sector": True, "centred_sector": True},
            networks={"predictor": str(save_predictor(tmp_path / "predictor.pt", config))},
        )
    if sees_more or out == "team.pt2":
        folder = tmp_path
        save_team(folder / "team.pt", config)
        assert run(folder, "onnx" if out == "team.onnx" else "torch", out, "--observations") == 0
    coma = trained_team(config, find_checkpoint(str(folder / "team.pt")), "cpu")
    fly, facts = opened(folder / out)
    assert facts["agents"] == 3
    for missions in (1, 30):
        state, *more = flight(config, coma, missions)
        assert_flies_alike(fly, (state, *more), sees_more)
    moved = Sectors(3, (7, 7), "cpu").deal(state.positions, state.team_size)
    assert not sees_more or not moved.equal(state.sector)


@pytest.mark.soak
@torch.no_grad()
@pytest.mark.parametrize("out", ["team.onnx", "team.pt2"])
def test_a_team_with_a_window_is_exported_for_another_area(out: str, tmp_path: Path) -> None:
    off = {"heard_uavs", "window", "other_actions", *PREDICTED_CHANNELS}
    seen: dict[str, Any] = {n: n not in off for n in ObservationConfig.model_fields} | {"window": 5}
    area = ({"x_dim": 30.0, "y_dim": 30.0}, {"x_dim": 20.0, "y_dim": 40.0})
    trained = small_config(observation=seen, environment={"area": area})
    checkpoint = find_checkpoint(str(save_team(tmp_path / "team.pt", trained)))
    sides = ["environment.x_dim=60", "environment.y_dim=25"]
    form = "onnx" if out == "team.onnx" else "torch"
    options = [text for side in sides for text in ("--set", side)]
    assert run(tmp_path, form, out, "--observations", *options) == 0
    fly, facts = opened(tmp_path / out)
    assert facts["lattice"] == [13, 6, 3]
    there = mission_config(None, sides, checkpoint)
    team = trained_team(there, checkpoint, "cpu")
    assert_flies_alike(fly, flight(there, team, missions=5), starts=True)


def test_a_team_of_several_areas_is_exported_for_one(tmp_path: Path, refused: Any) -> None:
    area = ({"x_dim": 30.0, "y_dim": 30.0}, {"x_dim": 20.0, "y_dim": 40.0})
    seen = {"window": 5, "other_actions": False}
    save_team(tmp_path / "team.pt", small_config(observation=seen, environment={"area": area}))
    assert "environment.area lists 2 areas" in refused(run, tmp_path, "torch", "team.pt2")


def test_onnx_of_one_uav_equals_the_trained_actor(
    folder: Path, config: Config, coma: Algorithm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "onnx", "one.onnx") == 0
    printed = capsys.readouterr().out
    assert str(folder / "one.onnx") in printed
    assert printed.count(" ms") == 2
    _, _, masks, policy, observation, _ = flight(config, coma, 3)
    inputs = {"observation": observation.flatten(0, 1), "mask": masks.flatten(0, 1)}
    (found,) = opened(folder / "one.onnx")[0]({n: value.numpy() for n, value in inputs.items()})
    np.testing.assert_allclose(found, policy.flatten(0, 1).numpy(), atol=1e-5, rtol=0)


def test_the_example_flies_the_mission_of_the_library(
    folder: Path, config: Config, coma: Algorithm
) -> None:
    """Without noise only the start is random: NumPy and the environment must agree."""
    env = MissionEnvironment(config, 1, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = LearnedPlanner(coma.act, builder, env.lattice)
    state = env.reset()
    start, truth = state.positions[0].numpy().copy(), state.truth[0].numpy().copy()
    for _ in range(env.episode_length):
        env.step(state, planner.act(state, env.generator)[0])
    session = onnxruntime.InferenceSession(str(folder / "team.onnx"))
    world = json.loads(session.get_modelmeta().custom_metadata_map[exported.FACTS])
    rng = np.random.default_rng(0)
    beliefs, positions = runpy.run_path(str(EXAMPLE))["fly"](session, world, truth, start, rng)
    assert np.array_equal(positions, state.positions[0].numpy())
    np.testing.assert_allclose(beliefs, state.beliefs[0].numpy(), atol=1e-3)


def test_the_example_needs_neither_pytorch_nor_this_library(folder: Path) -> None:
    code = (
        "import runpy, sys; sys.modules.update(torch=None, marl_framework=None); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLE), str(folder / "team.onnx")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 < float(done.stdout.split()[-4]) < 0.5


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ((), "team.onnx"),
        (("nowhere.onnx",), "nowhere.onnx"),
        (("team.pt",), "team.pt"),
        (("actor.onnx",), "--observations"),
    ],
)
def test_the_example_refuses_other_files_in_one_line(
    files: tuple[str, ...], named: str, folder: Path, refused: Callable[..., str], monkeypatch
) -> None:
    assert run(folder, "onnx", "actor.onnx") == 0
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), *(str(folder / file) for file in files)])
    assert named in refused(runpy.run_path, str(EXAMPLE), run_name="__main__")


def test_a_file_that_is_not_equal_is_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(portable.PortableActor, "forward", lambda self, o, m: torch.rand(m.shape))
    assert run(folder, "onnx", "wrong.onnx") == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert not (folder / "wrong.onnx").exists()


@pytest.mark.parametrize(
    ("form", "out", "more", "named"),
    [
        ("onnx", "team.pt2", [], ".onnx"),
        ("torch", "team.onnx", [], ".pt2"),
        ("onnx", "no/team.onnx", [], "--out"),
        ("weights", "team.onnx", [], ".pt"),
        ("weights", "new.pt", ["--observations"], "--observations"),
        ("onnx", "new.onnx", ["--set", "experiment.constraints.num_actions=9"], "num_actions"),
        ("onnx", "new.onnx", ["--set", "networks.actr=1"], "networks.actor"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, form: str, out: str, more: list[str], named: str, refused: Callable[..., str]
) -> None:
    before = sorted(folder.iterdir())
    assert named in refused(run, folder, form, out, *more)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("out", ["checkpoints/last.pt", "own.pt", "link.pt"])
def test_checkpoints_of_runs_and_its_own_are_not_written_over(
    out: str, folder: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    own, last = tmp_path / "own.pt", tmp_path / "checkpoints" / "last.pt"
    last.parent.mkdir()
    content = (folder / "team.pt").read_bytes()
    own.write_bytes(content)
    last.write_bytes(content)
    (tmp_path / "link.pt").symlink_to(own)
    command = ["--checkpoint", str(own), "--format", "weights", "--out", str(tmp_path / out)]
    assert f"--out {tmp_path / out}" in refused(export.main, command)
    assert own.read_bytes() == last.read_bytes() == content


def test_without_the_extra_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    line = refused(run, folder, "onnx", "new.onnx")
    assert "pip install 'marl_framework[onnx]'" in line


def test_weights_alone_fly_like_the_run_that_they_are_of(
    config: Config, coma: Algorithm, folder: Path
) -> None:
    assert run(folder, "weights", "small.pt", "--set", "experiment.title=shared") == 0
    assert (folder / "small.pt").stat().st_size < (folder / "team.pt").stat().st_size / 2
    small = find_checkpoint(str(folder / "small.pt"))
    assert set(small.payload) == {"format", "config", "actor"}
    found = mission_config(None, [], small)
    assert found.experiment.title == "shared"
    team = trained_team(found, small, "cpu")
    _, _, _, policy, seen, _ = flight(config, coma, 2)
    assert policy.equal(flight(config, team, 2)[3])
    assert torch.equal(team.act(seen), coma.act(seen))


def test_a_map_predictor_has_weights_too(config: Config, tmp_path: Path) -> None:
    full = save_predictor(tmp_path / "team.pt", config, samples="many")
    assert run(tmp_path, "weights", "least.pt") == 0
    assert set(load_checkpoint(tmp_path / "least.pt")) == {"format", "config", "predictor", "width"}
    files = (str(full), str(tmp_path / "least.pt"))
    ours, theirs = (load_predictor(file, "key").state_dict().values() for file in files)
    assert all(map(torch.equal, ours, theirs))
