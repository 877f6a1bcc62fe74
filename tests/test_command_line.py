"""What all command lines share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_framework import history

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
