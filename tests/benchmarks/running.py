"""Run a benchmark in this process, on a small mission."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.helpers import harness
from marl_framework.command_line import BAD_INPUT

BANDWIDTH = 1e10
FAR = "experiment.uav.communication_range=100"  # so that there is something to fuse
FLOAT32 = "compute.precision=float32"
SMALL = ["--config", "params_test.yaml", "--device", "cpu", "--seconds-per-row", "0.001"]
SMALL += ["--set", FLOAT32]


def read_strict(path: Path) -> Any:
    """Return what a JSON file holds; NaN and infinities are no JSON."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


def run(module: ModuleType, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a benchmark; return what it wrote."""
    out = folder / "found.json"
    assert module.main([*SMALL, "--out", str(out), *arguments]) == 0
    found: dict[str, Any] = read_strict(out)
    assert (found["schema"], found["suite"]) == (harness.SCHEMA, module.__name__.split(".")[-1])
    assert found["machine"]["memory_bandwidth"] == {"cpu": BANDWIDTH}  # of the fixture `quick`
    return found


def refusal(
    module: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """Run a benchmark with bad input; return the one line that it gives."""
    out = folder / "found.json"
    error = refusal_of(module, capsys, *SMALL, "--out", str(out), *arguments)
    assert not out.exists()
    return error


def refusal_of(module: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command with bad input; return the one line that it gives."""
    try:
        code = module.main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == BAD_INPUT
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def positive(values):
    return all(isinstance(value, int | float) and value > 0 for value in values)
