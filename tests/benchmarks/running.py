"""Run a benchmark in this process, on a small mission."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.helpers import harness
from marl_framework.config.loading import load_config
from tests.teams import save_predictor, save_team

BANDWIDTH = 1e10
FAR = "experiment.uav.communication_range=100"  # so that UAVs hear each other
FLOAT32 = "compute.precision=float32"
WIDE = "networks.actor.conv_channels=9"
CONFIG = ["--config", "params_test.yaml", "--set", FLOAT32, "--set", "compute.device=cpu"]
SMALL = [*CONFIG, "--seconds-per-row", "0.001"]


def read_strict(path: Path) -> Any:
    """Return the content of a JSON file without NaN and infinities."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


def run(module: ModuleType, folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a benchmark; return its JSON."""
    out = folder / "found.json"
    assert module.main([*SMALL, "--out", str(out), *arguments]) == code
    found: dict[str, Any] = read_strict(out)
    assert (found["schema"], found["suite"]) == (harness.SCHEMA, module.__name__.split(".")[-1])
    assert found["machine"]["memory_bandwidth"] == {"cpu": BANDWIDTH}  # of the fixture `quick`
    assert found["settings"]["configuration"]["compute"]["precision"] == "float32"
    return found


def team_words(folder: Path) -> list[str]:
    """Return options that name a team, and a predictor for `search`, that have learned nothing."""
    config = load_config("params_test.yaml", [FLOAT32, WIDE])
    predictor = save_predictor(folder / "predictor.pt", config)
    team = save_team(folder / "team.pt", config)
    chosen = f"experiment.baselines.search.predictor={predictor}"
    return ["--set", chosen, "--checkpoint", str(team)]


def positive(values):
    return all(isinstance(value, int | float) and value > 0 for value in values)
