"""Commands whose reader goes away, or that never had one."""

import os
import sys

import pytest

from marl_framework import evaluate
from marl_framework.command_line import as_program


@pytest.mark.parametrize("buffering", [1, -1])
def test_an_evaluation_goes_on_when_nobody_reads(buffering, tmp_path, monkeypatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    given = ["--config", "params_test.yaml", "--policies", "random", "--missions", "1"]
    given += ["--device", "cpu", "--no-figures", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["evaluate", *given])
    with os.fdopen(writer, "w", buffering) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr(sys, "stderr", closed)
        assert evaluate.command() == 0
    assert (tmp_path / "results.json").is_file()


def test_a_command_without_output_does_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert as_program(lambda: sys.stdout.write("5") + sys.stderr.write("5") - 2) == 0
    sys.stdout.close()
    sys.stderr.close()
