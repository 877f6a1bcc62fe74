"""Runs that do as their text says, trained by `train_runs`: `python -m tests.training.series`."""

from __future__ import annotations

import os
import signal
import sys
from typing import cast
from unittest.mock import patch

from marl_framework.command_line import as_program
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.runs.log import RunLog
from marl_framework.training.jobs import Named, train_runs, worst
from marl_framework.training.ranks import Ranks
from marl_framework.training.signals import interruptible


class Patient:
    """A training that takes its time, until it is asked to end after its step."""

    def __init__(self, hears: bool) -> None:
        self._hears, self._ended = hears, False

    def interrupt(self) -> None:
        self._ended = self._hears

    def train(self) -> None:
        inside, outside = os.pipe()
        os.set_blocking(outside, False)
        with interruptible(self, Ranks()):
            signal.set_wakeup_fd(outside)  # none can come unseen before the process waits
            print(f"process {os.getpid()} trains", flush=True)
            while not self._ended:
                os.read(inside, 1)
            print("ended after its step", flush=True)  # before another signal ends the process


def train(config: Config, *, run_name: str, log: RunLog) -> int:
    """Do what the text says that stands for a configuration."""
    text = str(config)
    print(f"{text}: {os.environ.get('OMP_NUM_THREADS')} threads, ", end="", flush=True)
    print(f"{os.environ.get('NUMBA_NUM_THREADS')} of numba, terminal: {sys.stdout.isatty()}")
    if text == "lacks":
        raise ConfigError("sensor: broken")
    if text == "breaks":
        raise RuntimeError("broken")
    if text == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "signalled":  # when all has been said
        end = Named.end

        def signalled(stream: Named) -> None:
            end(stream)
            os.kill(os.getpid(), signal.SIGTERM)

        patch.object(Named, "end", signalled).start()
    if text in ("hears", "works"):
        Patient(text == "hears").train()
        return 130
    print("no line end", end="")
    return 0


def main() -> int:
    """Train `NAME=TEXT …`, as many at once as the first argument says."""
    if name := os.environ.get("IGNORED"):  # as a shell does for what runs in the background
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    jobs, *pairs = sys.argv[1:]
    runs = {name: cast(Config, text) for name, text in (pair.split("=") for pair in pairs)}
    codes = train_runs(runs, train, RunLog(), int(jobs), lambda name, _: f"next: {name}")
    return worst(codes)


if __name__ == "__main__":
    sys.exit(as_program(main))
