"""The benchmark of the wrappers: what it writes, and that all of them fly the same missions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.quiet_torchrl  # noqa: F401
from benchmarks.helpers import harness
from benchmarks.speed import wrappers
from marl_framework.config.loading import load_config
from marl_framework.mission.environment import MissionEnvironment

SMALL = ["--config", "params_test.yaml", "--device", "cpu", "--seconds-per-row", "0.001"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "memory_bandwidth", lambda _: 1e10)
    torch.set_num_threads(1)  # compiled loops take all cores when they are first called


@pytest.mark.parametrize("cpu_time", [False, True])
def test_rows_of_the_core_and_every_wrapper(
    cpu_time: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, clock = tmp_path / "found.json", ["--cpu-time"] if cpu_time else []
    assert wrappers.main([*SMALL, *clock, "--num-envs", "1,3", "--out", str(out)]) == 0
    found = json.loads(out.read_text(), parse_constant=pytest.fail)
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
def test_an_episode_is_one_of_the_core(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody resets once and steps T times, and the missions are the same."""
    steps: list[torch.Tensor] = []
    resets: list[int] = []
    step, reset = MissionEnvironment.step, MissionEnvironment.reset

    def watch_step(self: Any, *rest: Any) -> Any:
        result = step(self, *rest)
        steps.append(result.reward)
        return result

    def watch_reset(self: Any, *rest: Any) -> Any:
        resets.append(1)
        return reset(self, *rest)

    config = load_config("params_test.yaml")
    n, a = config.missions.most_agents, config.experiment.constraints.num_actions
    draws = torch.rand(
        config.missions.episode_length, 1, n, a, generator=torch.Generator().manual_seed(2)
    )
    monkeypatch.setattr(MissionEnvironment, "step", watch_step)
    monkeypatch.setattr(MissionEnvironment, "reset", watch_reset)
    episode = wrappers.MAKERS[name](config, torch.device("cpu"), draws)
    episode()
    episode()
    assert len(steps) == 2 * config.missions.episode_length
    assert len(resets) in (2, 3)  # with its own resets, the next one has begun


def test_a_missing_library_and_bad_numbers_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrappers.main([*SMALL, "--num-envs", "1,x"]) == 2
    assert capsys.readouterr().err.startswith("error: --num-envs 1,x: give whole numbers")
    monkeypatch.delitem(sys.modules, "marl_framework.integrations.pettingzoo", raising=False)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    out = str(tmp_path / "found.json")
    assert wrappers.main([*SMALL, "--num-envs", "1", "--out", out]) == 2
    assert "pip install 'marl_framework[pettingzoo]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
