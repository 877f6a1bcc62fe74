"""Workers, the collective and students, flown on missions of a few seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
import yaml

from benchmarks.learning import stages
from marl_framework.config.loading import load_config
from marl_framework.evaluate import main as evaluate
from marl_framework.evaluation.statistics import interval
from tests.benchmarks.running import FLOAT32, refusal, run
from tests.teams import save_team

pytestmark = pytest.mark.usefixtures("quick")
TASKS = {
    "near": {},
    "wide": {
        "experiment": {"missions": {"n_agents": 3}, "uav": {"communication_range": float("inf")}}
    },
}
SHORT = ["--seeds", "3,4", "--missions", "4", "--seed", "11"]


class House:
    """A folder with tasks, and a finished run of each stage, seed and task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tasks = folder / "tasks.yaml"
        self.tasks.write_text(yaml.safe_dump(TASKS))
        for seed in (3, 4):
            self._train(f"all-{seed}", seed)
            for task in TASKS:
                self._train(f"own-{seed}-{task}", seed + 10)
                self._train(f"late-{seed}-{task}", seed + 20)

    def _train(self, name: str, seed: int) -> None:
        run = self.folder / name
        (run / "checkpoints").mkdir(parents=True)
        config = load_config("params_test.yaml", [FLOAT32, f"environment.seed={seed}"])
        save_team(run / "checkpoints" / "best.pt", config, seed)
        results = {"training_steps": seed, "finished": True}
        (run / "summary.json").write_text(json.dumps({"results": results}))

    @property
    def arguments(self) -> list[str]:
        names = {"worker": "own-{seed}-{task}", "collective": "all-{seed}"}
        names["student"] = "late-{seed}-{task}"
        runs = [f"--{stage}={self.folder / name}" for stage, name in names.items()]
        return ["--tasks", str(self.tasks), *runs, *SHORT]

    def evaluated(self, out: str, task: str, *policies: str) -> dict[str, Any]:
        """What `evaluate --tasks` finds on the same missions."""
        arguments = ["--config", "params_test.yaml", "--device", "cpu", "--tasks", str(self.tasks)]
        arguments += ["--policies", ",".join(policies), "--missions", "4", "--seed", "11"]
        folder = self.folder / out
        assert evaluate([*arguments, "--no-figures", "--out", str(folder)]) == 0
        found = json.loads((folder / "results.json").read_text())["combinations"]
        (summary,) = (one["summary"] for one in found if one["name"] == task)
        return summary


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_every_stage_flies_the_missions_of_every_task(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(stages, tmp_path, *house.arguments)
    text = capsys.readouterr().out
    assert (tmp_path / "found.png").stat().st_size > 10_000
    flown = {(one["variant"], one["task"], one["seed"]): one for one in found["runs"]}
    assert len(flown) == 2 * (3 * 2 + 1)
    teams = {
        "a": ("worker", tmp_path / "own-4-{task}"),
        "b": ("collective", tmp_path / "all-4"),
        "c": ("student", tmp_path / "late-4-{task}"),
    }
    policies = [f"{name}={path}" for name, (_, path) in teams.items()]
    expected = house.evaluated("by_task", "wide", *policies, "information_gain")
    for name, (stage, _) in teams.items():
        values = flown[stage, "wide", 4]["finals"]["f1"]
        assert mean(values) == pytest.approx(expected[name]["f1"]["mean"], abs=1e-5)
    gain = flown["information_gain", "wide", None]["finals"]["f1"]
    assert mean(gain) == pytest.approx(expected["information_gain"]["f1"]["mean"], abs=1e-5)

    student, worker = (
        torch.tensor([flown[stage, "near", seed]["finals"]["f1"] for seed in (3, 4)])
        for stage in ("student", "worker")
    )
    change = (student - worker).mean().item()
    ends = interval(student - worker)
    assert ends is not None
    row = next(line for line in text.splitlines() if " student " in line)
    assert f"{change:+.3f} [{ends[0]:+.3f}, {ends[1]:+.3f}]" in row
    assert row.split()[-1] == "24"  # training steps, the mean of 23 and 24


def test_only_missing_flights_are_made(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(stages, tmp_path, *house.arguments)["runs"]
    made, fly = [], stages.evaluate
    monkeypatch.setattr(stages, "evaluate", lambda *a, **k: made.append(a) or fly(*a, **k))
    assert run(stages, tmp_path, *house.arguments)["runs"] == first
    assert not made
    trained = tmp_path / "late-3-near" / "checkpoints" / "best.pt"
    shutil.copy(tmp_path / "late-4-near" / "checkpoints" / "best.pt", trained)
    second = run(stages, tmp_path, *house.arguments)["runs"]
    assert len(made) == 1
    assert len(second) == len(first)
    newest = [
        one["finals"] for one in second if (one["variant"], one["task"]) == ("student", "near")
    ]
    assert newest[0] == newest[1]


def test_bad_input_is_one_line(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = [*house.arguments, "--student", "nothing"]
    assert "checkpoint nothing" in refusal(stages, tmp_path, capsys, *missing)
    summary = tmp_path / "own-3-near" / "summary.json"
    summary.write_text('{"results": {"training_steps": 13, "finished": false}}')
    assert "own-3-near: it has no summary" in refusal(stages, tmp_path, capsys, *house.arguments)
    assert "--missions 0" in refusal(stages, tmp_path, capsys, *house.arguments, "--missions", "0")
