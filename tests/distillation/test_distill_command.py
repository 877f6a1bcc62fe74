"""The command line of distillation: what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_framework import distill
from marl_framework.config.loading import dump_config, load_config
from marl_framework.evaluate import main as evaluate
from marl_framework.main import main as train
from tests.running import results
from tests.small import small_config
from tests.teams import save_team

TASKS = {
    "field": {"sensor": {"simulation": {"kinds": ["random_field"], "cluster_radius": 3.0}}},
    "many": {"experiment": {"missions": {"n_agents": 4}}},
}
ROUNDS = ("rounds=2", "missions=2", "updates=2", "batch_size=8")


class House:
    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.tasks = folder / "tasks.yaml"
        self.tasks.write_text(yaml.safe_dump(TASKS))
        self._params = folder / "small.yaml"
        evaluation, logging = {"interval": 1, "missions": 2}, {"directory": str(self.runs)}
        config = small_config(evaluation=evaluation, logging=logging)
        dump_config(config, self._params)
        self.team = str(save_team(folder / "team.pt", config))

    def distill(self, *arguments: str) -> int:
        sets = [part for text in ROUNDS for part in ("--set", f"distillation.{text}")]
        return distill.main(["--config", str(self._params), "--device", "cpu", *sets, *arguments])

    def both(self, *arguments: str) -> int:
        teachers = ("--teacher", f"field={self.team}", "--teacher", "many=information_gain")
        return self.distill("--tasks", str(self.tasks), *teachers, *arguments)

    def results(self, name: str) -> dict[str, Any]:
        return results(self.runs / name)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_the_command_makes_a_team_that_flies_and_resumes(
    house: House, refused: Callable[..., str], tmp_path: Path
) -> None:
    assert house.both("--run-name", "c") == 0
    run = house.runs / "c"
    results = house.results("c")
    assert results["finished"]
    assert 0 <= results["last"]["agreement/many"] <= 1
    assert len(results["weights_sha256"]) == 64
    config = load_config(run / "config.yaml")
    assert config.distillation.teachers == {"field": house.team, "many": "information_gain"}
    assert set(config.distillation.tasks) == set(TASKS)
    assert house.both("--run-name", "c", "--resume") == 0
    flight = ("--policies", "learned", "--missions", "2", "--out", str(tmp_path / "out"))
    assert evaluate(["--checkpoint", str(run), "--device", "cpu", *flight]) == 0
    again = ("--config", str(run / "config.yaml"), "--run-name", "c", "--resume")
    assert "c: " in refused(train, again)
    line = refused(house.distill, "--teacher", "a=random", "--run-name", "c", "--resume")
    assert re.search(r"distillation\.tasks.*distillation\.teachers", line)


@pytest.mark.soak
def test_a_worker_is_trained_for_each_task_and_teaches_it(
    house: House, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    short = ("training_steps=1", "batch_size=8", "batch_number=2", "data_passes=1")
    sets = [part for text in short for part in ("--set", f"learning.{text}")]
    workers = ("--workers", str(house.tasks), "--run-name", "w", *sets)
    assert house.distill(*workers, "--check") == 0
    assert not house.runs.exists()
    assert house.distill(*workers) == 0
    assert sorted(path.name for path in house.runs.iterdir()) == ["w-field", "w-many"]
    assert load_config(house.runs / "w-many" / "config.yaml").experiment.missions.n_agents == 4
    assert "w-field" in refused(house.distill, *workers)
    assert house.distill(*workers, "--resume") == 0

    given = ("--tasks", str(house.tasks), "--teacher", "w", "--run-name", "c")
    capsys.readouterr()
    assert house.distill(*given, "--print-config") == 0
    printed = yaml.safe_load(capsys.readouterr().out)["distillation"]
    assert (printed["teachers"], printed["tasks"]) == ({t: f"w-{t}" for t in TASKS}, TASKS)
    assert house.distill(*given) == 0
    assert {"agreement/field", "agreement/many"} < house.results("c")["last"].keys()

    students = ("--workers", str(house.tasks), "--run-name", "s", *sets)
    assert house.distill(*students, "--init-from", str(house.runs / "c")) == 0
    for task in TASKS:
        noted = json.loads((house.runs / f"s-{task}" / "environment.json").read_text())
        assert noted["initial_weights"]["networks"] == ["actor", "critic", "target_critic"]
        assert noted["initial_weights"]["checkpoint"].endswith("c/checkpoints/best.pt")


HAND_MADE = "tests.distillation.hand_made"
WORKERS, TAUGHT = "--workers {tasks}", "--teacher a=random"
OF_TASKS = f"--tasks {{tasks}} {TAUGHT}"
BAD = [
    (WORKERS, "{a: {}}", "--workers --run-name"),
    (f"{WORKERS} --run-name w {TAUGHT}", "{a: {}}", "--teacher --workers"),
    (f"{WORKERS} --run-name w --init-from no/run", "{a: {}}", "--init-from: no/run"),
    (f"{WORKERS} --run-name w", "{a: {learning: {gamma: 2}}}", "tasks.yaml: a: learning.gamma"),
    (f"{WORKERS} --run-name w", "{a b: {}}", "tasks.yaml: 'a b':"),
    (f"{WORKERS} --run-name w", "{no: {}}", "tasks.yaml: quotes"),
    (f"{WORKERS} --run-name w", "{a: {experiment: {policy: search}}}", "a: experiment.policy"),
    ("", None, "distillation.teachers: --teacher"),
    ("--teacher a=", None, "--teacher a=:"),
    ("--teacher a", None, "--teacher a: --tasks"),
    ("--teacher a=random --teacher a=oracle", None, "--teacher a=oracle"),
    ("--teacher 'a b=random'", None, "distillation.teachers: 'a b':"),
    ("--teacher a=nobody", None, "distillation.teachers.a: nobody"),
    ("--teacher a=no.such", None, "planner: no.such"),
    ("--teacher a={folder}", None, "distillation.teachers.a: checkpoint"),
    (f"--teacher a={HAND_MADE}.Nonsense --run-name c", None, f"{HAND_MADE}.Nonsense.act"),
    (f"--teacher a={HAND_MADE}.Mute --run-name c", None, "distillation.teachers.a:"),
    (OF_TASKS, "{a: {}, b: {}}", "distillation.teachers.b: --teacher"),
    (f"{OF_TASKS} --teacher x=random", "{a: {}}", "distillation.tasks: x a"),
    (f"{TAUGHT} --set distillation.temperature=1e-300", None, "distillation.temperature"),
    (f"{TAUGHT} --resume", None, "--resume --run-name"),
    (f"{TAUGHT} --init-from a", None, "--init-from requires --workers"),
    (OF_TASKS, "[]", "tasks.yaml:"),
    (OF_TASKS, "{a: 3}", "tasks.yaml: a"),
    (OF_TASKS, "{a: {sea: 3}}", "distillation.tasks.a: sea"),
    (OF_TASKS, "{a: {experiment: {missions: {n_agents: 0}}}}", "tasks.a: missions.n_agents"),
    (OF_TASKS, "{a: {environment: {x_dim: 40}}}", "task a: environment.x_dim 40 30"),
    (OF_TASKS, "{a: {experiment: {constraints: {num_actions: 4}}}}", "task a: num_actions 4 6"),
    ("--tasks {tasks} --teacher a={other}", "{a: {}}", "teacher of a: environment.x_dim 40 30"),
]


@pytest.mark.parametrize(("arguments", "tasks", "words"), BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    house: House,
    refused: Callable[..., str],
    tmp_path: Path,
    arguments: str,
    tasks: str | None,
    words: str,
) -> None:
    if tasks is not None:
        house.tasks.write_text(tasks)
    if "{other}" in arguments:
        save_team(tmp_path / "other.pt", small_config(dims=(40.0, 40.0)))
    names = {"tasks": house.tasks, "folder": tmp_path, "other": tmp_path / "other.pt"}
    line = refused(house.distill, *shlex.split(arguments.format(**names)))
    assert re.search(".*".join(map(re.escape, words.split())), line)
    assert not house.runs.exists()
