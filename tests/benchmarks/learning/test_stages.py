"""Workers, the collective and students, flown on missions of a few seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import mean

import pytest
import torch
import yaml

from benchmarks.learning import stages
from marl_framework.config.loading import load_config
from marl_framework.evaluate import main as evaluate
from marl_framework.evaluation.statistics import interval
from tests.benchmarks.running import CONFIG, FLOAT32, SMALL, run
from tests.teams import save_team

pytestmark = pytest.mark.usefixtures("quick")
TASKS = {
    "near": {},
    "wide": {
        "experiment": {"missions": {"n_agents": 3}, "uav": {"communication_range": float("inf")}}
    },
}
RUNS = {"worker": "own-{seed}-{task}", "collective": "all-{seed}", "student": "late-{seed}-{task}"}


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Return the options for finished runs of each stage, seed and task."""
    tasks = tmp_path / "tasks.yaml"
    tasks.write_text(yaml.safe_dump(TASKS))
    names = {
        pattern.format(seed=seed, task=task): seed + 10 * number
        for number, pattern in enumerate((RUNS["collective"], RUNS["worker"], RUNS["student"]))
        for seed in (3, 4)
        for task in TASKS
    }
    for name, seed in names.items():
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        config = load_config("params_test.yaml", [FLOAT32, f"environment.seed={seed}"])
        save_team(tmp_path / name / "checkpoints" / "best.pt", config, seed)
        results = {"training_steps": seed, "finished": True}
        (tmp_path / name / "summary.json").write_text(json.dumps({"results": results}))
    runs = [f"--{stage}={tmp_path / name}" for stage, name in RUNS.items()]
    return ["--tasks", str(tasks), *runs, "--seeds", "3,4", "--missions", "4", "--seed", "11"]


def test_every_stage_flies_the_missions_of_every_task(arguments, tmp_path, capsys):
    found = run(stages, tmp_path, *arguments)
    text = capsys.readouterr().out
    assert (tmp_path / "found.png").stat().st_size > 10_000
    flown = {(one["variant"], one["task"], one["seed"]): one for one in found["runs"]}
    assert len(flown) == 2 * (3 * 2 + 1)

    # `evaluate --tasks` finds the same.
    teams = {stage[0]: tmp_path / name.replace("{seed}", "4") for stage, name in RUNS.items()}
    policies = ",".join([*(f"{name}={path}" for name, path in teams.items()), "information_gain"])
    out = tmp_path / "by_task"
    given = [*CONFIG, *arguments[:2], *arguments[-4:], "--policies", policies, "--out", str(out)]
    assert evaluate([*given, "--no-figures"]) == 0
    combinations = json.loads((out / "results.json").read_text())["combinations"]
    (expected,) = (one["summary"] for one in combinations if one["name"] == "wide")
    keys = {stage[0]: (stage, "wide", 4) for stage in RUNS}
    keys["information_gain"] = ("information_gain", "wide", None)
    for name, key in keys.items():
        f1 = mean(flown[key]["finals"]["f1"])
        assert f1 == pytest.approx(expected[name]["f1"]["mean"], abs=1e-5)

    student, worker = (
        torch.tensor([flown[stage, "near", seed]["finals"]["f1"] for seed in (3, 4)])
        for stage in ("student", "worker")
    )
    ends = interval(student - worker)
    assert ends is not None
    row = next(line for line in text.splitlines() if " student " in line)
    assert f"{(student - worker).mean().item():+.3f} [{ends[0]:+.3f}, {ends[1]:+.3f}]" in row
    assert row.split()[-1] == "24"  # training steps, the mean of 23 and 24


def test_only_missing_flights_are_made(arguments, tmp_path, monkeypatch):
    first = run(stages, tmp_path, *arguments)["runs"]
    made, fly = [], stages.evaluate
    monkeypatch.setattr(stages, "evaluate", lambda *a, **k: made.append(a) or fly(*a, **k))
    assert run(stages, tmp_path, *arguments)["runs"] == first
    assert not made
    best = "checkpoints/best.pt"
    shutil.copy(tmp_path / "late-4-near" / best, tmp_path / "late-3-near" / best)
    second = run(stages, tmp_path, *arguments)["runs"]
    assert (len(made), len(second)) == (1, len(first))
    same = [one["finals"] for one in second if (one["variant"], one["task"]) == ("student", "near")]
    assert same[0] == same[1]


def test_runs_that_are_missing_or_unfinished_are_refused(arguments, tmp_path, refused):
    given = [*SMALL, "--out", tmp_path / "found.json", *arguments]
    assert "nothing" in refused(stages, *given, "--student", "nothing")
    summary = tmp_path / "own-3-near" / "summary.json"
    summary.write_text('{"results": {"training_steps": 13, "finished": false}}')
    assert str(summary) in refused(stages, *given)
