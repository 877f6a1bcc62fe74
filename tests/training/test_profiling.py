"""A few training steps are profiled, whatever becomes of the training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile

from marl_framework.training.profiling import profile_steps


@pytest.mark.parametrize(("n", "steps", "recorded"), [(2, 6, 2), (100, 3, 2)])
def test_n_training_steps_are_profiled_or_as_many_as_there_are(
    n: int, steps: int, recorded: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        with profile_steps(n, tmp_path / "run") as step:
            for _ in range(steps):
                torch.mm(torch.ones(1, 1), torch.ones(1, 1))
                step()
            raise ValueError("ends early")

    with pytest.raises(ValueError, match="ends early"):
        train()
    trace = json.loads((tmp_path / "run" / "profile.json").read_text(encoding="utf-8"))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("aten::mm") == recorded  # without the first step, which warms up
    out = capsys.readouterr().out
    assert str(tmp_path / "run" / "profile.json") in out
    assert "aten::mm" in out


def test_a_training_of_one_step_is_not_profiled(tmp_path, capsys) -> None:
    with profile_steps(3, tmp_path):
        pass
    assert "No training step was profiled" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


def test_no_steps_to_profile_cost_nothing(tmp_path, monkeypatch, capsys) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a profiler was made")

    monkeypatch.setattr("marl_framework.training.profiling.profile", refuse)
    with profile_steps(0, tmp_path / "run") as step:
        step()
    assert os.listdir(tmp_path) == []
    assert capsys.readouterr().out == ""


def test_a_full_disk_does_not_stop_the_training(tmp_path, monkeypatch, capsys) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile, "export_chrome_trace", full)
    with profile_steps(1, tmp_path) as step:
        for _ in range(4):
            torch.mm(torch.ones(1, 1), torch.ones(1, 1))
            step()
    assert "could not be written" in capsys.readouterr().out
