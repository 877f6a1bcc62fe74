"""Runs of `main`, for the tests: how they begin, and what they leave."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marl_framework.main import main


def run_main(folder: Path, name: str, *arguments: str, sets: Iterable[str] = ()) -> int:
    """Run `main` on params_test.yaml into folder/runs/NAME; return the exit code."""
    given = [f"--set={key}" for key in (f"logging.directory={folder / 'runs'}", *sets)]
    fixed = ("--config=params_test.yaml", "--device=cpu", f"--run-name={name}")
    return main([*fixed, *given, *arguments])


def results(run: Path) -> dict[str, Any]:
    """Return the results in a run's summary."""
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))["results"]
