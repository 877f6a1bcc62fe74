"""Commands of careless users never end with a traceback.

A refusal (exit code 2) is one line that names what is wrong, with nothing changed. No code from a
file is executed, and the trained run that the cases copy stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_framework.command_line import BAD_INPUT
from tests.soak.commands import run, training
from tests.soak.hostile_cases import OWNED, Case, all_cases

pytestmark = pytest.mark.soak
# Ctrl-C inside a callback of llvmlite, which prints it and continues until the next one.
IN_CALLBACK = re.compile(r"Exception ignored .*?\nKeyboardInterrupt: ?\n", re.DOTALL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the trained run that cases copy."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(training("whole"), folder) == (0, "")
    before = files(folder)
    yield folder / "runs" / "whole"
    assert files(folder) == before


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_a_command_ends_as_it_may(case: Case, whole: Path, tmp_path: Path) -> None:
    assert problems(case, tmp_path, whole) == []


def problems(case: Case, at: Path, whole: Path) -> list[str]:
    """Run a case in an empty folder; return what is wrong with its end."""
    case.prepare(at, whole)
    before = files(at)
    module, *arguments = case.command
    code, said = case.drive([sys.executable, "-m", f"marl_framework.{module}", *arguments], at)
    said = IN_CALLBACK.sub("", said)
    lines = [line for line in said.splitlines() if not line.startswith("warning: ")]
    found = {
        f"exit code {code}: {said[-500:]}": code not in case.codes,
        f"a traceback: {said[-2000:]}": "Traceback" in said,
        "code was executed": (at / OWNED).exists(),
    }
    if code == BAD_INPUT:
        found |= {
            "not one line": len(lines) != 1 or not lines[0].startswith("error: "),
            f"{case.named!r} is not named: {said}": case.named not in said,
            "files have changed": files(at) != before,
        }
    return [problem for problem, there in found.items() if there]


def files(at: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file except locks."""
    found = [path for path in at.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.mark.parametrize(
    ("code", "said", "file", "number"),
    [
        (1, "error: no", None, 1),
        (-9, "", None, 1),
        (2, "error: no key\nTraceback", None, 2),
        (2, "warning: old\nerror: no", None, 1),
        (2, "error: no key", OWNED, 2),
        (2, "error: no key", "left.txt", 1),
        (2, "warning: old\nerror: no key", None, 0),
        (0, "", "a run", 0),
    ],
)
def test_problems_are_seen(
    code: int, said: str, file: str | None, number: int, tmp_path: Path
) -> None:
    def drive(*_: object) -> tuple[int, str]:
        if file is not None:
            (tmp_path / file).write_text("")
        return code, said

    case = Case("x", ("main",), (0, 2), "key", drive=drive)
    assert len(problems(case, tmp_path, tmp_path)) == number
