"""A few commands of `tests.soak.hostile_commands`, and that it sees what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.hostile_cases import all_cases
from tests.soak.hostile_commands import OWNED, Case, outcome

CASES = {case.name: case for case in all_cases()}


def test_every_case_has_a_name_of_its_own() -> None:
    assert len(CASES) == len(all_cases()) >= 150


@pytest.mark.parametrize(
    "name", ["params file: a python tag", "params file: a bomb", "options: history show ../../etc"]
)
def test_a_hostile_command_is_refused_with_one_line(name: str, tmp_path: Path) -> None:
    assert outcome(CASES[name], tmp_path, tmp_path) == ("refused", "")


@pytest.mark.parametrize(
    ("code", "said", "file", "problem"),
    [
        (1, "error: no", None, "exit code 1"),
        (-9, "", None, "exit code -9"),
        (2, "error: no key\nTraceback", None, "a traceback, not one line"),
        (2, "warning: old\nerror: no", None, "'key' is not named"),
        (2, "error: no key", OWNED, "code was run, files have changed"),
        (2, "error: no key", "left.txt", "files have changed"),
        (2, "warning: old\nerror: no key", None, ""),
        (0, "", "a run", ""),
    ],
)
def test_the_harness_sees_what_is_wrong(
    code: int, said: str, file: str | None, problem: str, tmp_path: Path
) -> None:
    def drive(*_: object) -> tuple[int, str]:
        if file is not None:
            (tmp_path / file).write_text("")
        return code, said

    found = outcome(Case("x", ("main",), (0, 2), "key", drive=drive), tmp_path, tmp_path)[1]
    assert found.partition(":")[0] == problem
