"""Signals end a training after its step; only an urgent one that comes twice ends it at once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from marl_framework.main import main
from marl_framework.training.ranks import Ranks
from marl_framework.training.signals import interruptible
from marl_framework.training.trainer import Trainer
from tests.training.steps import at_step

WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
URGENT = (signal.SIGINT, signal.SIGTERM)


class Steps:
    """Counts how often it is asked to end."""

    asked = 0

    def interrupt(self) -> None:
        self.asked += 1


@pytest.mark.parametrize("number", WARNINGS)
def test_a_warning_may_come_often_and_before_the_urgent_signal(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # nohup, if the tests run under it, ignores it
    steps = Steps()
    try:
        with interruptible(steps.interrupt, Ranks()):
            for sent in (number, number, signal.SIGTERM, number):
                signal.raise_signal(sent)
            assert steps.asked == 4
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", WARNINGS)
def test_an_ignored_warning_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    steps = Steps()
    try:
        with interruptible(steps.interrupt, Ranks()):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert steps.asked == 0


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_warned_training_is_saved_and_goes_on(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = f"logging.directory={tmp_path / 'runs'}"
    given = ["--config", "params_test.yaml", "--device", "cpu", "--set", runs, "--run-name", "t"]
    monkeypatch.setattr(Trainer, "plan", at_step(2, lambda _: signal.raise_signal(number)))
    status = tmp_path / "runs" / "t" / "status.json"
    assert main(given) == 130
    found = json.loads(status.read_text())
    assert (found["state"], found["training_step"]) == ("interrupted", 2)
    assert main([*given, "--resume"]) == 0
    assert json.loads(status.read_text())["state"] == "finished"
