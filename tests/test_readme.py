"""The README's examples run as they stand."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_PART = re.compile(r"In `(\w+\.py)`:\n\n```python\n(.*?)^```\n\n```sh\n(.*?)^```$", re.M | re.S)
SECTION = README.partition("\n## Use it from Python\n")[2].partition("\n## ")[0]
OWN = OWN_PART.findall(SECTION)
SCRIPTS = [
    code
    for language, code in FENCE.findall(SECTION)
    if language == "python" and code not in {part for _, part, _ in OWN}
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_there_is_an_example_for_each_use_and_each_is_short() -> None:
    assert [name for name, _, _ in OWN] == ["my_terrain.py", "my_reward.py", "my_planner.py"]
    assert len(SCRIPTS) >= 3
    for code in [*SCRIPTS, *(part for _, part, _ in OWN)]:
        assert len([line for line in code.splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("code", SCRIPTS, ids=range(len(SCRIPTS)))
def test_an_example_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize(("file", "part", "commands"), OWN, ids=[name for name, _, _ in OWN])
def test_an_own_part_is_used(tmp_path: Path, file: str, part: str, commands: str) -> None:
    (tmp_path / file).write_text(part, encoding="utf-8")
    assert f"{Path(file).stem}." in commands
    for command in commands.splitlines():
        python, flag, module, *arguments = shlex.split(command)
        assert (python, flag) == ("python", "-m")
        assert import_module(module).main(arguments) == 0
