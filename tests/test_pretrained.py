"""What comes trained with the library: it loads, is better than nothing, and is named by name."""

import json
from pathlib import Path

import pytest
import torch

from marl_framework import evaluate, export, main
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.distillation.teachers import find_team
from marl_framework.evaluation import options
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.networks.map_predictor import PARTS
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import load_predictor
from marl_framework.planners.random_flight import RandomPlanner
from marl_framework.planners.search.models import PredictedMap
from marl_framework.planners.team import find_checkpoint
from marl_framework.prediction.samples import Samples, fly
from marl_framework.runs.names import checkpoint_file

PRETRAINED = Path(__file__).parents[1] / "marl_framework" / "pretrained"


def test_the_page_beside_them_names_each() -> None:
    page = (PRETRAINED / "README.md").read_text(encoding="utf-8")
    names = {path.stem for path in PRETRAINED.glob("*.pt")}
    assert names == {"predictor", "rough_predictor", "student"}
    assert all(f"`pretrained:{name}`" in page for name in names)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match="pretrained:x: unknown; choose from pretrained:predictor, "
    ):
        checkpoint_file("pretrained:x")
    with pytest.raises(ConfigError, match="the name is empty"):
        checkpoint_file("")
    with pytest.raises(ConfigError, match=r"teachers\.split: checkpoint pretrained:x"):
        find_team("pretrained:x", "runs", "split")


def test_a_predictor_is_no_team(tmp_path, refused, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    cpu = ["--set", "compute.device=cpu"]
    taken = ["--checkpoint", "pretrained:predictor", *cpu]
    test = ["--config", "params_test.yaml", "--check", *cpu]
    teacher = ["--set", "learning.teacher.run=pretrained:predictor"]
    teacher += ["--set", "learning.teacher.weight=1"]
    for command, arguments in (
        (evaluate, [*taken, "--policies", "learned", "--missions", "2", "--out", "out"]),
        (main, [*test, "--init-from", "pretrained:predictor"]),
        (main, [*test, *teacher]),
        (export, [*taken, "--format", "onnx", "--out", "p.onnx"]),
    ):
        assert "map predictor" in refused(command.main, arguments)
    assert evaluate.main([*taken, "--policies", "random", "--missions", "1", "--out", "out"]) == 0


@pytest.mark.parametrize("name", ["predictor", "rough_predictor"])
def test_a_predictor_knows_more_than_the_belief(name: str) -> None:
    config = load_config("params_fast.yaml", ["compute.device=cpu"])
    env = MissionEnvironment(config, 8, "cpu", "validation")
    view = LatticeView(config, env.lattice, PARTS)
    model = PredictedMap(view, load_predictor(f"pretrained:{name}", "key"))
    errors = torch.zeros(2)
    with torch.no_grad():
        planner = RandomPlanner(env.lattice)
        for state in fly(env, lambda state: planner.act(state, env.generator).actions):
            seen, target = Samples.of(view, state).batch(slice(None), 0)
            guesses = torch.stack((model.predict(seen), seen.coarse[:, 2]))
            errors += (guesses - target).square().mean((1, 2, 3))
    assert errors[0] < 0.8 * errors[1]


def assert_the_student_flies_better(folder: Path, *arguments: str) -> None:
    given = ["--checkpoint=pretrained:student", "--policies=learned,information_gain"]
    given += ["--set=compute.device=cpu", f"--out={folder}", *arguments]
    assert evaluate.main(given) == 0
    found = json.loads((folder / "results.json").read_text())["summary"]
    left = {name: values["roi_entropy"]["mean"] for name, values in found.items()}
    assert left["learned"] < 0.8 * left["information_gain"]


def test_the_student_flies_its_missions_at_once_and_teaches(tmp_path: Path) -> None:
    assert_the_student_flies_better(tmp_path / "out", "--missions=8")
    team = find_team("pretrained:student", "runs", "split")
    assert team is not None
    assert team.payload["config"]["networks"]["predictor"] == "pretrained:rough_predictor"


def test_the_student_flies_fields_and_areas_of_other_sizes(tmp_path: Path) -> None:
    keys = ("environment.x_dim=100", "environment.y_dim=50", "environment.field=random")
    sets = [f"--set={key}" for key in (*keys, "experiment.constraints.budget=20")]
    given = ("--config=params_fast.yaml", "--missions=4", *sets)
    assert_the_student_flies_better(tmp_path / "out", *given)


def test_records_keep_the_name_not_where_the_library_lies() -> None:
    assert find_checkpoint("pretrained:student").name == "pretrained:student"
    assert options.read_policies("learned=.")[0] == [Path.cwd().name]
    names, runs = options.read_policies("learned=pretrained:student,random")
    assert (names, runs) == (["student", "random"], {"student": "pretrained:student"})
