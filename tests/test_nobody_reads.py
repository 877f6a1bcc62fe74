"""Commands whose reader goes away, or that never had one."""

from __future__ import annotations

import os
import sys

import pytest

from marl_framework import evaluate
from marl_framework.command_line import as_program


def test_an_evaluation_goes_on_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    written = []

    def main() -> int:
        print("learned: 50 missions", flush=True)
        print("warning: slow", file=sys.stderr, flush=True)
        written.append("results.json")
        return 0

    monkeypatch.setattr(evaluate, "main", main)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr(sys, "stderr", closed)
        assert evaluate.command() == 0
    assert written == ["results.json"]


def test_a_command_without_output_does_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert as_program(lambda: sys.stdout.write("5") + sys.stderr.write("5") - 2) == 0
    sys.stdout.close()
    sys.stderr.close()
