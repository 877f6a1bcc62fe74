"""Every benchmark exists and prints its help."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT / "benchmarks").with_suffix("").parts)
    for path in (ROOT / "benchmarks").glob("*/*.py")
    if "__main__" in path.read_text(encoding="utf-8") and path.stem != "__main__"
)


def test_make_bench_runs_benchmarks_that_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (names,) = re.findall(r"^BENCHMARKS := (.*)$", text, re.MULTILINE)
    assert names
    assert set(names.split()) <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_answers_help(name, monkeypatch, capsys) -> None:
    module = f"benchmarks.{name}"
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m {module} ")
