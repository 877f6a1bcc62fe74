"""Signals end a training after its step; only an urgent one that comes twice ends it at once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from marl_framework.training.ranks import Ranks
from marl_framework.training.signals import interruptible
from marl_framework.training.trainer import Trainer
from tests.running import run_main
from tests.training.steps import at_step

WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.mark.parametrize("number", WARNINGS)
def test_a_warning_may_come_often_and_before_the_urgent_signal(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    asked: list[int] = []
    with interruptible(lambda: asked.append(1), Ranks()):
        for sent in (number, number, signal.SIGTERM, number):
            signal.raise_signal(sent)
        assert len(asked) == 4
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(number) == signal.SIG_DFL
    signal.signal(number, signal.SIG_IGN)
    with interruptible(pytest.fail, Ranks()):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_warned_training_is_saved_and_goes_on(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "make_steps", at_step(2, lambda _: signal.raise_signal(number)))
    status = tmp_path / "runs" / "t" / "status.json"
    assert run_main(tmp_path, "t") == 130
    found = json.loads(status.read_text())
    assert (found["state"], found["training_step"]) == ("interrupted", 2)
    assert run_main(tmp_path, "t", "--resume") == 0
    assert json.loads(status.read_text())["state"] == "finished"
