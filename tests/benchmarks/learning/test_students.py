"""Ways of distilling, compared on missions of a few seconds."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from benchmarks.helpers.harness import CPU
from benchmarks.learning import students
from marl_framework.config.loading import load_config
from marl_framework.distillation.trainer import Distiller
from tests.benchmarks.running import run

pytestmark = pytest.mark.usefixtures("quick")
PARAMS = """
extends: params_test.yaml
distillation:
  tasks: {near: {}, wide: {experiment: {missions: {n_agents: 2}}}}
  teachers: {near: information_gain, wide: coverage}
  missions: 3
  updates: 2
  batch_size: 8
learning: {actor: {learning_rate: 0.05}}
evaluation: {missions: 3}
compute: {device: cpu, precision: float32}
"""


@pytest.fixture
def short(tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "params.yaml"
    file.write_text(PARAMS)
    return ("--config", str(file), "--rounds", "2", "--steps", "2")


def test_missing_runs_are_made_and_compared_with_the_first(short, tmp_path, capsys, monkeypatch):
    seeds = ("--seeds", "3,4")
    first = run(students, tmp_path, *short, *seeds, "--variants", "on_policy,off_policy")
    made, distil = [], students.distil
    monkeypatch.setattr(students, "distil", lambda s: made.append(s.config) or distil(s))
    everything = "on_policy,off_policy,coma,coma_pulled"
    second = run(students, tmp_path, *short, *seeds, "--variants", everything)
    assert [one.environment.seed for one in made] == [3, 4]  # the students that COMA continues
    assert {one.distillation.teacher_rounds for one in made} == {0}
    assert second["runs"][:4] == first["runs"]
    reached = {(one["variant"], one["seed"]): one["tasks"] for one in second["runs"]}
    assert len(reached) == 8
    assert reached["coma", 3] != reached["on_policy", 3]
    assert reached["coma", 3] != reached["coma_pulled", 3]
    change = mean(
        reached["coma", seed][task]["f1"] - reached["on_policy", seed][task]["f1"]
        for seed in (3, 4)
        for task in ("near", "wide")
    )
    assert f"{change:+.3f} [" in capsys.readouterr().out.rpartition("coma ")[2]


def test_the_first_student_is_that_of_the_command(short, tmp_path):
    found = run(students, tmp_path, *short, "--variants", "on_policy", "--seeds", "5")
    settings = ["distillation.rounds=2", "distillation.teacher_rounds=0", "environment.seed=5"]
    student = Distiller(load_config(short[1], settings), CPU)
    student.round()
    last = student.round()
    for task, values in found["runs"][0]["tasks"].items():
        assert values["f1"] == pytest.approx(last[f"validation_f1/{task}"])
