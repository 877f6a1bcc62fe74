"""Exported teams do what the trained one does, in ONNX Runtime, torch.export and NumPy."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from marl_framework import export
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.protocol import Algorithm
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.exporting import exported, portable
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sectors import Sectors
from marl_framework.mission.state import MissionState
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.predictor import load_predictor, predictor_state
from marl_framework.planners import LearnedPlanner
from marl_framework.planners.team import find_checkpoint, mission_config, trained_team
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from tests.small import small_config

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fly_onnx.py"
SURE = 1e-6  # so little noise that no reading is ever wrong


@pytest.fixture(scope="module")
def config() -> Config:
    model = {"table": {5.0: SURE, 10.0: SURE, 15.0: SURE}}
    return small_config(sensor={"pixel": {"number_x": 12, "number_y": 12}, "model": model})


@pytest.fixture(scope="module")
def coma(config: Config) -> COMAWrapper:
    torch.manual_seed(1)
    return COMAWrapper(config, config.network_sizes, "cpu")


@pytest.fixture(scope="module")
def folder(config: Config, coma: COMAWrapper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint and its team as ONNX."""
    folder = tmp_path_factory.mktemp("export")
    payload = {**coma.state_dict(), "config": config_to_dict(config)}
    save_checkpoint(folder / "team.pt", payload)
    assert run(folder, "onnx", "team.onnx", "--observations") == 0
    return folder


def run(folder: Path, form: str, out: str, *more: str) -> int:
    checkpoint = str(folder / "team.pt")
    return export.main(
        ["--checkpoint", checkpoint, "--format", form, "--out", str(folder / out), *more]
    )


def flight(config: Config, coma: Algorithm, missions: int) -> tuple[Any, ...]:
    """Missions after two moves, what the trained team does there, and what it sees."""
    env = MissionEnvironment(config, missions, "cpu", seed=77)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = LearnedPlanner(coma.act, builder, env.lattice)
    state = env.reset(env.draw_reset())
    starts = state.positions.clone()
    for _ in range(2):
        env.step(state, planner.act(state, env.generator)[0], env.draw_step())
    actions, masks, *_ = planner.act(state, env.generator)
    policy = coma.act(builder.actor(state)).masked_fill(~masks, -torch.inf).softmax(-1)
    return state, actions, masks, policy, builder.actor(state), starts


def arrays(state: MissionState, starts: Tensor | None = None) -> dict[str, Any]:
    names = ("positions", "t", "heard", "beliefs", "readings")
    given = {name: getattr(state, name).numpy() for name in names}
    return given if starts is None else given | {"starts": starts.numpy()}


@pytest.mark.parametrize("missions", [1, 7])
def test_onnx_with_observations_inside_equals_the_trained_team(
    folder: Path, config: Config, coma: COMAWrapper, missions: int
) -> None:
    state, actions, _, policy, *_ = flight(config, coma, missions)
    session = onnxruntime.InferenceSession(str(folder / "team.onnx"))
    found, probabilities = session.run(None, arrays(state))
    assert np.array_equal(found, actions.numpy())
    np.testing.assert_allclose(probabilities, policy.numpy(), atol=1e-5, rtol=0)


def test_onnx_of_one_uav_equals_the_trained_actor(
    folder: Path, config: Config, coma: COMAWrapper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "onnx", "one.onnx") == 0
    printed = capsys.readouterr().out
    assert "one.onnx: 0.0" in printed
    assert "latency of one UAV" in printed
    _, _, masks, policy, observation, _ = flight(config, coma, 3)
    session = onnxruntime.InferenceSession(str(folder / "one.onnx"))
    inputs = {"observation": observation.flatten(0, 1), "mask": masks.flatten(0, 1)}
    (found,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    np.testing.assert_allclose(found, policy.flatten(0, 1).numpy(), atol=1e-5, rtol=0)


def test_torch_export_equals_the_trained_team(
    folder: Path, config: Config, coma: COMAWrapper
) -> None:
    assert run(folder, "torch", "team.pt2", "--observations") == 0
    facts = {exported.FACTS_FILE: ""}
    program = torch.export.load(folder / "team.pt2", extra_files=facts)
    state, actions, _, policy, *_ = flight(config, coma, 4)
    found, probabilities = program.module()(
        *(torch.from_numpy(value) for value in arrays(state).values())
    )
    assert torch.equal(found, actions)
    torch.testing.assert_close(probabilities, policy, atol=1e-5, rtol=0)
    assert json.loads(facts[exported.FACTS_FILE])["agents"] == 3


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_a_team_that_sees_more_is_exported_too(form: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "predictor.pt", predictor_state(MapPredictor(4), 4))
    config = small_config(
        observation={"predicted": True, "sector": True, "centred_sector": True},
        networks={"predictor": str(tmp_path / "predictor.pt")},
    )
    coma = COMAWrapper(config, config.network_sizes, "cpu")
    save_checkpoint(tmp_path / "team.pt", {**coma.state_dict(), "config": config_to_dict(config)})
    out = "team.onnx" if form == "onnx" else "team.pt2"
    assert run(tmp_path, form, out, "--observations") == 0
    state, actions, _, policy, _, starts = flight(config, coma, 30)
    sectors = Sectors(3, (7, 7), "cpu")
    assert not sectors.deal(state.positions, state.team_size).equal(state.sector)
    if form == "onnx":
        session = onnxruntime.InferenceSession(str(tmp_path / out))
        found, probabilities = map(torch.from_numpy, session.run(None, arrays(state, starts)))
    else:
        program = torch.export.load(tmp_path / out).module()
        given = arrays(state, starts).values()
        found, probabilities = program(*(torch.from_numpy(value) for value in given))
    assert torch.equal(found, actions)
    torch.testing.assert_close(probabilities, policy, atol=1e-5, rtol=0)


def example() -> Any:
    spec = importlib.util.spec_from_file_location("fly_onnx", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_flies_the_mission_of_the_library(
    folder: Path, config: Config, coma: COMAWrapper
) -> None:
    """Without noise nothing is random but the start: NumPy and the environment must agree."""
    env = MissionEnvironment(config, 1, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = LearnedPlanner(coma.act, builder, env.lattice)
    state = env.reset(env.draw_reset())
    start, truth = state.positions[0].numpy().copy(), state.truth[0].numpy().copy()
    for _ in range(env.episode_length):
        env.step(state, planner.act(state, env.generator)[0], env.draw_step())
    session = onnxruntime.InferenceSession(str(folder / "team.onnx"))
    world = json.loads(session.get_modelmeta().custom_metadata_map[exported.FACTS])
    rng = np.random.default_rng(0)
    beliefs, positions = example().fly(session, world, truth, start, rng)
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


def test_the_example_is_short() -> None:
    code = EXAMPLE.read_text(encoding="utf-8").partition("import onnxruntime")[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


def test_a_file_that_is_not_equal_is_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(portable.PortableActor, "forward", lambda self, o, m: torch.rand(m.shape))
    assert run(folder, "onnx", "wrong.onnx") == 1
    assert "differs from PyTorch by" in capsys.readouterr().err
    assert not (folder / "wrong.onnx").exists()


@pytest.mark.parametrize(
    ("form", "out", "more", "named"),
    [
        ("onnx", "team.pt2", [], ".onnx"),
        ("torch", "team.onnx", [], ".pt2"),
        ("onnx", "no/team.onnx", [], "no folder"),
        ("weights", "team.onnx", [], ".pt"),
        ("weights", "new.pt", ["--observations"], "--observations"),
        ("onnx", "new.onnx", ["--set", "experiment.constraints.num_actions=9"], "does not fit"),
        ("onnx", "new.onnx", ["--set", "networks.actr=1"], "networks.actor"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    out: str,
    more: list[str],
    named: str,
) -> None:
    before = sorted(folder.iterdir())
    assert run(folder, form, out, *more) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert named in lines[0]
    assert sorted(folder.iterdir()) == before


def test_checkpoints_of_runs_are_not_written_over(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = tmp_path / "checkpoints" / "last.pt"
    last.parent.mkdir()
    last.write_bytes((folder / "team.pt").read_bytes())
    assert run(folder, "weights", str(last)) == 2
    assert "last.pt: it is a checkpoint of a run; name another file" in capsys.readouterr().err
    assert last.read_bytes() == (folder / "team.pt").read_bytes()


def test_a_checkpoint_is_not_written_over_itself(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, link = tmp_path / "own.pt", tmp_path / "link.pt"
    own.write_bytes((folder / "team.pt").read_bytes())
    link.symlink_to(own)
    for out in (own, link):
        command = ["--checkpoint", str(own), "--format", "weights", "--out", str(out)]
        assert export.main(command) == 2
        error = capsys.readouterr().err
        assert error == f"error: --out {out}: it is the checkpoint to export; name another file\n"
    assert own.read_bytes() == (folder / "team.pt").read_bytes()


def test_without_the_extra_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert run(folder, "onnx", "new.onnx") == 2
    assert "pip install 'marl_framework[onnx]'" in capsys.readouterr().err


def test_weights_alone_fly_like_the_run_that_they_are_of(
    config: Config, coma: COMAWrapper, folder: Path
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


def test_a_map_predictor_has_weights_too(folder: Path, config: Config) -> None:
    network = MapPredictor(4)
    payload = {**predictor_state(network, 4), "config": config_to_dict(config), "samples": "many"}
    save_checkpoint(folder / "predictor.pt", payload)
    options = ["--format", "weights", "--out", str(folder / "least.pt")]
    assert export.main(["--checkpoint", str(folder / "predictor.pt"), *options]) == 0
    assert set(load_checkpoint(folder / "least.pt")) == {"format", "config", "predictor", "width"}
    loaded = load_predictor(str(folder / "least.pt"), "key").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in network.state_dict().items())
