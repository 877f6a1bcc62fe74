"""Triton kernels without a GPU: interpreted, and compiled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.helpers.machine_code import Launch, compile_for

_MOST_REGISTERS = 128


def interpreted(*names: str) -> None:
    """Run `interpreted_NAME.py` in a process in which Triton interprets; all tests must pass."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    old = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"  # Triton 3.6 makes them
    tests = [str(Path(__file__).with_name(f"interpreted_{name}.py")) for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", old, *tests],
        cwd=Path(__file__).parents[2],
        env={**kept, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), "none may be skipped"


def check_machine_code(launch: Launch, architecture: int) -> None:
    """Compile a launch: it reads and writes memory, spills no register and needs no atomics."""
    code = compile_for(launch, architecture)
    where = f"{launch.variant} on sm_{architecture}: {code}"
    assert code.registers <= _MOST_REGISTERS, where
    assert code.spilled == 0, where
    assert {("ld", "global"), ("st", "global")} <= code.operations, where
    assert not {"atom", "red"} & {name for name, _ in code.operations}, where
