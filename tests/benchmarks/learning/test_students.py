"""Ways of distilling, compared on missions of a few seconds."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks.learning import students
from marl_framework.config.loading import load_config
from marl_framework.distillation.trainer import Distiller
from tests.benchmarks.running import refusal

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
SHORT = ["--rounds", "2", "--steps", "2"]


@pytest.fixture
def params(tmp_path: Path) -> str:
    file = tmp_path / "params.yaml"
    file.write_text(PARAMS)
    return str(file)


def run(params: str, out: Path, *arguments: str) -> dict[str, Any]:
    options = ["--config", params, "--out", str(out), *SHORT, *arguments]
    assert students.main(options) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_missing_runs_are_made_and_compared_with_the_first(
    params: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "found.json"
    first = run(params, out, "--variants", "on_policy,off_policy", "--seeds", "3,4")
    made, distil = [], students.distil
    monkeypatch.setattr(students, "distil", lambda s: made.append(s.config) or distil(s))
    everything = "on_policy,off_policy,coma,coma_pulled"
    second = run(params, out, "--variants", everything, "--seeds", "3,4")
    assert [one.environment.seed for one in made] == [3, 4]  # to go on from
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


def test_the_first_student_is_that_of_the_command(params: str, tmp_path: Path) -> None:
    found = run(params, tmp_path / "found.json", "--variants", "on_policy", "--seeds", "5")
    settings = ["distillation.rounds=2", "distillation.teacher_rounds=0", "environment.seed=5"]
    student = Distiller(load_config(params, settings), students.torch.device("cpu"))
    student.round()
    last = student.round()
    for task, values in found["runs"][0]["tasks"].items():
        assert values["f1"] == pytest.approx(last[f"validation_f1/{task}"])


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--variants" in refusal(students, tmp_path, capsys, "--variants", "both")
    assert "--rounds 0" in refusal(students, tmp_path, capsys, "--rounds", "0")
