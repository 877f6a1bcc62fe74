"""The comparison with other libraries: what it writes, whoever is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.helpers import harness
from benchmarks.speed import comparison
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config

SMALL = ["--config", "params_test.yaml", "--seconds-per-row", "0.001", "--num-envs", "3,1"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "memory_bandwidth", lambda _: 1e10)
    monkeypatch.setattr(comparison, "in_fresh_process", lambda work: work())
    monkeypatch.setattr(comparison, "_LEARNING_ENVS", 2)
    torch.set_num_threads(1)


def test_ours_is_measured_and_who_is_absent_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(comparison, "is_installed", lambda package: package == "marl_framework")
    out = tmp_path / "found.json"
    assert comparison.main([*SMALL, "--out", str(out)]) == 0
    found = json.loads(out.read_text(), parse_constant=pytest.fail)
    rows = [(row["contender"], row["num_envs"]) for row in found["rows"]]
    assert rows == [("ours", 1), ("ours", 3), ("ours_learning", 2)]
    assert all(
        0 < row["lower"] <= row["agent_steps_per_s"] <= row["upper"] for row in found["rows"]
    )
    assert found["absent"] == ["vmas", "torchrl", "jaxmarl", "benchmarl"]
    assert "not installed here: vmas" in capsys.readouterr().out


def test_agent_steps_are_counted_by_the_missions_flown() -> None:
    config = load_config("params_test.yaml", ["compute.precision=float32"])
    # 3 missions of 2 UAVs and 4 moves; a training step takes 32 transitions = 4 missions
    assert comparison.ours(config, 3, 0.001).agent_steps == 3 * 2 * 4
    assert comparison.ours_learning(config, 4, 0.001).agent_steps == 4 * 2 * 4


def test_another_library_is_measured_by_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    class World:
        n_agents, steps = 3, 0

        def reset(self) -> None:
            self.steps = 0

        def get_random_actions(self) -> None:
            return None

        def step(self, actions: None) -> None:
            self.steps += 1

    world = World()
    made = type("vmas", (), {"make_env": staticmethod(lambda name, **_: world)})
    monkeypatch.setattr(comparison, "import_module", lambda name: made)
    speed = comparison.vmas(Config(), 5, 0.0)
    assert speed.agent_steps == 5 * 3 * 15
    assert world.steps == 15 * (speed.timing.repeats + 1)  # one call warms up


@pytest.mark.parametrize("wrong", [["--contenders", "ours,mava"], ["--num-envs", "0"]])
def test_bad_input_is_one_line(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert comparison.main([*SMALL, *wrong]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert wrong[0] in line
