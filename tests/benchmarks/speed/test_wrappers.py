"""The benchmark of the wrappers, and that all of them fly the same missions."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import tests.quiet_torchrl  # noqa: F401
from benchmarks.helpers.harness import CPU
from benchmarks.speed import wrappers
from marl_framework.mission.environment import MissionEnvironment
from tests.benchmarks.running import SMALL, run

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("cpu_time", [False, True])
def test_rows_of_the_core_and_every_wrapper(cpu_time, tmp_path, capsys):
    found = run(wrappers, tmp_path, *["--cpu-time"] * cpu_time, "--num-envs", "1,3")
    assert ("CPU" in found["settings"]["clock"]) == cpu_time
    rows = found["rows"]
    names = list(wrappers.MAKERS)
    assert [(r["wrapper"], r["num_envs"]) for r in rows] == [
        *((name, 1) for name in names),
        *((name, 3) for name in names if name != "pettingzoo"),
    ]
    for first, row in [(rows[0], r) for r in rows[:5]] + [(rows[5], r) for r in rows[5:]]:
        core, own = first["seconds_per_step"], row["seconds_per_step"]
        assert row["share_of_core"] == pytest.approx(core / own)
        assert row["joint_steps_per_second"] == pytest.approx(row["num_envs"] / own)
        assert row["episodes"] >= 3
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


@pytest.mark.parametrize("name", list(wrappers.MAKERS))
def test_an_episode_is_one_of_the_core(name, monkeypatch, config):
    """Every wrapper resets once and makes T steps."""
    calls = {"step": 0, "reset": 0}

    def count(method: str) -> Any:
        real = getattr(MissionEnvironment, method)

        def counted(self: Any, *rest: Any) -> Any:
            calls[method] += 1
            return real(self, *rest)

        return counted

    for method in calls:
        monkeypatch.setattr(MissionEnvironment, method, count(method))
    steps, actions = config.missions.episode_length, config.experiment.constraints.num_actions
    episode = wrappers.MAKERS[name](config, CPU, torch.rand(steps, 1, 2, actions))
    episode()
    episode()
    assert calls["step"] == 2 * steps
    assert calls["reset"] in (2, 3)  # some also begin the next episode


def test_a_missing_library_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "marl_framework.integrations.pettingzoo", raising=False)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    given = [*SMALL, "--num-envs", "1", "--out", str(tmp_path / "found.json")]
    assert wrappers.main(given) == 2
    assert "marl_framework[pettingzoo]" in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
