"""The command flies a team, writes its record, and refuses bad input in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from marl_framework.flying.options import main
from tests.small import small_config
from tests.teams import save_team


def test_a_team_flies_into_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    team = save_team(tmp_path / "team.pt", small_config())
    words = ("--dry-run", "--checkpoint", str(team), "--run-name", "today", "--seed", "3")
    assert main([*words, "--set", f"logging.directory={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "equal: yes" in printed
    run = tmp_path / "today"
    results = json.loads((run / "summary.json").read_text())["results"]
    assert results["first_difference"] is None
    assert results["team"] == results["simulator"]
    assert [uav["moves"] for uav in results["uavs"]] == [5, 5, 5]
    record = [json.loads(line) for line in (run / "decisions.jsonl").read_text().splitlines()]
    assert len(record) == 3 * (6 + 5)
    for uav in range(3):
        own = [entry for entry in record if entry["uav"] == uav]
        places = [entry["place"] for entry in own if entry["event"] == "fused"]
        goals = [entry["next"] for entry in own if entry["event"] == "decided"]
        assert places[1:] == goals
        assert printed.count(f"UAV {uav + 1}: 5 moves") == 1


GAIN = ("--dry-run", "--policy", "information_gain", "--config", "params_test.yaml")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (GAIN[1:], "--dry-run"),
        (("--dry-run",), "--checkpoint"),
        (("--dry-run", "--policy", "oracle"), "--policy"),
        (("--dry-run", "--policy", "nobody"), "--policy"),
        (GAIN[:3], "--config"),
        ((*GAIN, "--seed", "-1"), "--seed"),
        ((*GAIN, "--separation", "nan"), "--separation"),
        ((*GAIN, "--run-name", "a b"), "a b"),
        (("--dry-run", "--checkpoint", "missing.pt"), "missing.pt"),
        (("--dry-run", "--policy", "random", "--config", "missing.yaml"), "missing.yaml"),
        ((*GAIN, "--set", "experiment.missions.n_agents=[2,4]"), "experiment.missions.n_agents"),
        ((*GAIN, "--set", "experiment.uav.crash_rate=0.1"), "experiment.uav.crash_rate"),
        ((*GAIN, "--set", "experiment.uav.delay=1"), "experiment.uav.delay"),
        ((*GAIN, "--set", "experiment.constraints.budget=[3,5]"), "experiment.constraints.budget"),
        ((*GAIN, "--set", "experiment.constraints.cost.limit=99"), "cost.limit"),
        ((*GAIN, "--set", "sensor.model.adapt=true"), "sensor.model.adapt"),
    ],
)
def test_bad_input_is_refused(
    refused: Callable[..., str], words: tuple[str, ...], named: str
) -> None:
    assert named in refused(main, list(words))
