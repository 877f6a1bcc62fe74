"""Every benchmark is there, and says how to use it."""

from __future__ import annotations

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("speed", "learning", "reference", "figures")
SCRIPTS = sorted(
    f"{path.parent.name}.{path.stem}"
    for folder in FOLDERS
    for path in (ROOT / "benchmarks" / folder).glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")
)


def test_make_bench_runs_benchmarks_that_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(r"^BENCHMARKS := (.*)$", text, re.MULTILINE)
    assert found
    named = found[1].split()
    assert named
    assert set(named) <= set(SCRIPTS)
    assert len(named) == len(set(named))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_answers_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"benchmarks.{name}"
    assert find_spec(module)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m {module} ")
