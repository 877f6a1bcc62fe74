"""What all command lines share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_framework import doctor, evaluate, export, history, main
from tests.soak import kill_and_resume, mutate_params

ROOT = Path(__file__).parents[1]


def test_a_reader_that_stops_early_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "marl_framework.doctor", "--config", "params_test.yaml"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_history_does_not_call_a_closed_pipe_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(*_: object) -> Iterator[str]:
        yield "first"
        raise BrokenPipeError

    monkeypatch.setattr(history, "_lines", lines)
    with pytest.raises(BrokenPipeError):
        history.main(["list"])


@pytest.mark.parametrize(
    "module", [main, evaluate, export, doctor, history, kill_and_resume, mutate_params]
)
def test_an_unknown_option_is_one_line(module, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        module.main(["--no-such-option"])
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
