"""The comparison with other libraries, whichever are installed."""

from __future__ import annotations

import pytest

from benchmarks.speed import comparison
from marl_framework.config.model import Config
from tests.benchmarks.running import run

pytestmark = pytest.mark.usefixtures("here")


def test_ours_is_measured_and_missing_libraries_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "LEARNING_ENVS", 2)
    monkeypatch.setattr(comparison, "is_installed", lambda package: package == "marl_framework")
    found = run(comparison, tmp_path, "--num-envs", "3,1")
    rows = [(row["contender"], row["num_envs"]) for row in found["rows"]]
    assert rows == [("ours", 1), ("ours", 3), ("ours_learning", 2)]
    for row in found["rows"]:
        assert 0 < row["lower"] <= row["agent_steps_per_s"] <= row["upper"]
    assert found["absent"] == ["vmas", "torchrl", "jaxmarl", "benchmarl"]
    assert "vmas" in capsys.readouterr().out


def test_agent_steps_are_counted_by_the_missions_flown(config):
    # 3 missions of 2 UAVs and 4 moves; a training step takes 32 transitions = 4 missions
    assert comparison.ours(config, 3, 0.001).agent_steps == 3 * 2 * 4
    assert comparison.ours_learning(config, 4, 0.001).agent_steps == 4 * 2 * 4


def test_another_library_is_measured_by_its_steps(monkeypatch):
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
