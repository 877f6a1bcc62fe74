"""The command line of distillation: what it writes, and what it refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml

from marl_framework import distill
from marl_framework.config.loading import load_config
from marl_framework.distillation.trainer import Distiller
from marl_framework.evaluate import main as evaluate
from marl_framework.main import main as train
from marl_framework.runs.log import LOG
from tests.small import small_config
from tests.teams import save_team

TASKS = {
    "field": {"sensor": {"simulation": {"kinds": ["random_field"], "cluster_radius": 3.0}}},
    "many": {"experiment": {"missions": {"n_agents": 4}}},
}
ROUNDS = ("rounds=2", "missions=2", "updates=2", "batch_size=8")


class House:
    """A folder with a params file, tasks and a trained team."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.tasks = folder / "tasks.yaml"
        self.tasks.write_text(yaml.safe_dump(TASKS))
        self._params = folder / "small.yaml"
        config = small_config(evaluation={"interval": 1, "missions": 2})
        tree = config.model_dump(by_alias=True, mode="json", exclude_defaults=True)
        tree["logging"] = {"directory": str(self.runs)}
        self._params.write_text(yaml.safe_dump(tree))
        self.team = str(save_team(folder / "team.pt", config))

    def distill(self, *arguments: str) -> int:
        sets = [part for text in ROUNDS for part in ("--set", f"distillation.{text}")]
        return distill.main(["--config", str(self._params), "--device", "cpu", *sets, *arguments])

    def both(self, *arguments: str) -> int:
        teachers = ("--teacher", f"field={self.team}", "--teacher", "many=information_gain")
        return self.distill("--tasks", str(self.tasks), *teachers, *arguments)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_the_command_makes_a_team_that_flies_and_resumes(
    house: House, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert house.both("--run-name", "c") == 0
    run = house.runs / "c"
    assert "round 2/2 | loss" in (run / LOG).read_text()
    results = json.loads((run / "summary.json").read_text())["results"]
    assert results["finished"]
    assert 0 <= results["last"]["agreement/many"] <= 1
    assert len(results["weights_sha256"]) == 64
    config = load_config(run / "config.yaml")
    assert config.distillation.teachers == {"field": house.team, "many": "information_gain"}
    assert set(config.distillation.tasks) == set(TASKS)
    assert house.both("--run-name", "c", "--resume") == 0
    assert "finished already" in capsys.readouterr().out
    flight = ("--policies", "learned", "--missions", "2", "--out", str(tmp_path / "out"))
    assert evaluate(["--checkpoint", str(run), "--device", "cpu", *flight]) == 0
    capsys.readouterr()
    again = ("--config", str(run / "config.yaml"), "--run-name", "c", "--resume")
    assert train(again) == 2
    error = capsys.readouterr().err
    assert "c: its checkpoints are of another kind of training" in error
    assert error.count("\n") == 1


def test_a_signal_ends_a_run_after_its_round_and_it_resumes_bit_for_bit(
    house: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert house.both("--run-name", "whole") == 0
    real = Distiller.round

    def ended(trainer: Distiller) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return real(trainer)

    monkeypatch.setattr(Distiller, "round", ended)
    assert house.both("--run-name", "parts") == 130
    assert "continue with --resume" in capsys.readouterr().err
    monkeypatch.setattr(Distiller, "round", real)
    assert house.both("--run-name", "parts", "--resume") == 0
    whole, parts = (
        json.loads((house.runs / name / "summary.json").read_text())["results"]
        for name in ("whole", "parts")
    )
    assert parts == whole


def test_a_run_that_fails_before_anything_is_learned_leaves_nothing(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    nonsense = "tests.distillation.hand_made.nonsense"
    assert house.distill("--teacher", f"a={nonsense}", "--run-name", "c") == 2
    assert "must return a Decision" in capsys.readouterr().err
    assert not house.runs.exists()


def test_a_teacher_that_says_nothing_is_named(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    mute = "tests.distillation.hand_made.mute"
    assert house.distill("--teacher", f"a={mute}", "--run-name", "c") == 2
    told = "distillation.teachers.a: the teacher says nothing of any state"
    assert told in capsys.readouterr().err


def test_a_run_goes_on_with_the_same_tasks_alone(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    assert house.both("--run-name", "c") == 0
    capsys.readouterr()
    assert house.distill("--teacher", "a=random", "--run-name", "c", "--resume") == 2
    error = capsys.readouterr().err
    assert "distillation.tasks" in error
    assert "distillation.teachers" in error


def test_a_worker_is_trained_for_each_task_and_teaches_it(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("training_steps=1", "batch_size=8", "batch_number=2", "data_passes=1")
    sets = [part for text in short for part in ("--set", f"learning.{text}")]
    workers = ("--workers", str(house.tasks), "--run-name", "w", *sets)
    assert house.distill(*workers, "--check") == 0
    assert not house.runs.exists()
    assert house.distill(*workers) == 0
    assert sorted(path.name for path in house.runs.iterdir()) == ["w-field", "w-many"]
    assert load_config(house.runs / "w-many" / "config.yaml").experiment.missions.n_agents == 4
    capsys.readouterr()
    assert house.distill(*workers) == 2
    assert "run name w-field" in capsys.readouterr().err
    assert house.distill(*workers, "--resume") == 0
    assert capsys.readouterr().out.count("finished already") == 2

    given = ("--tasks", str(house.tasks), "--teacher", "w", "--run-name", "c")
    assert house.distill(*given) == 0
    last = json.loads((house.runs / "c" / "summary.json").read_text())["results"]["last"]
    assert {"agreement/field", "agreement/many"} < last.keys()

    students = ("--workers", str(house.tasks), "--run-name", "s", *sets)
    assert house.distill(*students, "--init-from", str(house.runs / "c")) == 0
    for task in TASKS:
        noted = json.loads((house.runs / f"s-{task}" / "environment.json").read_text())
        assert noted["initial_weights"]["networks"] == ["actor", "critic", "target_critic"]
        assert noted["initial_weights"]["checkpoint"].endswith("c/checkpoints/best.pt")


@pytest.mark.parametrize(
    ("arguments", "tasks", "line"),
    [
        ((), "{a: {}}", "--workers: name the runs with --run-name"),
        (("--run-name", "w", "--teacher", "a=random"), "{a: {}}", "--workers: does not go with"),
        (("--run-name", "w", "--init-from", "no/run"), "{a: {}}", "--init-from: checkpoint no/run"),
        (("--run-name", "w"), "{a: {learning: {gamma: 2}}}", "tasks.yaml: a: learning.gamma"),
        (("--run-name", "w"), "{a b: {}}", "tasks.yaml: a task's name is part of a run name 'a b'"),
        (
            ("--run-name", "w"),
            "{a: {experiment: {policy: search}}}",
            "tasks.yaml: a: experiment.policy is search, so there is no team to train",
        ),
    ],
)
def test_bad_workers_are_one_line(
    house: House,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    tasks: str,
    line: str,
) -> None:
    house.tasks.write_text(tasks)
    assert house.distill("--workers", str(house.tasks), *arguments) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not house.runs.exists()


def test_workers_teach_by_the_names_of_their_tasks(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    assert house.distill("--tasks", str(house.tasks), "--teacher", "w", "--print-config") == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["distillation"]["teachers"] == {"field": "w-field", "many": "w-many"}
    assert printed["distillation"]["tasks"] == TASKS


BAD = [
    ([], "distillation.teachers: there is none; name one with --teacher TASK=TEACHER"),
    (["--teacher", "a="], "--teacher a=: must read TASK=TEACHER"),
    (["--teacher", "a"], "--teacher a: name its tasks with --tasks"),
    (["--teacher", "a=random", "--teacher", "a=oracle"], "--teacher a=oracle: a has a teacher"),
    (
        ["--teacher", "a b=random"],
        "distillation.teachers: a task's name is part of a run name 'a b'",
    ),
    (["--teacher", "a=nobody"], "distillation.teachers.a: nobody: there is no such run folder"),
    (["--teacher", "a=no.such"], "planner: no.such: there is no module no"),
    (["--teacher", "a={runs}"], "distillation.teachers.a: checkpoint "),
    (["--teacher", "field=random"], "distillation.teachers: many has none"),
    (
        ["--teacher", "field=random", "--teacher", "many=random", "--teacher", "x=random"],
        "distillation.tasks: x is none of field, many",
    ),
    (["--teacher", "a=random", "--set", "distillation.loss=both"], "distillation.loss"),
    (["--teacher", "a=random", "--set", "distillation.rounds=0"], "distillation.rounds: "),
    (
        ["--teacher", "a=random", "--set", "distillation.temperature=1e-300"],
        "distillation.temperature: ",
    ),
    (["--resume", "--teacher", "a=random"], "--resume: name the run"),
    (["--teacher", "a=random", "--init-from", "a"], "--init-from: goes with --workers"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    house: House, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    house.runs.mkdir()
    given = [text.format(runs=house.runs) for text in arguments]
    tasks = ["--tasks", str(house.tasks)] if any("field=" in text for text in given) else []
    assert house.distill(*tasks, *given) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert line in error
    assert error.count("\n") == 1
    assert list(house.runs.iterdir()) == []


BAD_TASKS = [
    ("[]", "tasks.yaml: must hold a task by its name"),
    ("{a: 3}", "tasks.yaml: a: must hold"),
    ("{a: {sea: 3}}", "distillation.tasks.a: unknown key sea"),
    ("{a: {experiment: {missions: {n_agents: 0}}}}", "experiment.missions.n_agents"),
    (
        "{a: {environment: {x_dim: 40}}}",
        "task a: environment.x_dim is 40, and 30 of the team that learns",
    ),
    (
        "{a: {experiment: {constraints: {num_actions: 4}}}}",
        "task a: experiment.constraints.num_actions is 4, and 6 of the team that learns",
    ),
]


@pytest.mark.parametrize(("text", "line"), BAD_TASKS)
def test_bad_tasks_are_one_line(
    house: House, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    house.tasks.write_text(text)
    assert house.distill("--tasks", str(house.tasks), "--teacher", "a=random") == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_a_team_of_another_lattice_is_refused_by_the_key(
    house: House, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = save_team(tmp_path / "other.pt", small_config(dims=(40.0, 40.0)))
    house.tasks.write_text("{a: {}}")
    given = ("--teacher", f"a={other}")
    assert house.distill("--tasks", str(house.tasks), *given) == 2
    line = "teacher of a: environment.x_dim is 40, and 30 of the team that learns"
    assert line in capsys.readouterr().err
