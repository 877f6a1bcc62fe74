"""Runs commands by `run_commands`: `python -m tests.training.series JOBS NAME=WORD …`.

Each command is this module again, `python -m tests.training.series WORD`, which acts by its word.
"""

from __future__ import annotations

import os
import signal
import sys

from marl_framework.command_line import as_program
from marl_framework.training.processes import run_commands
from marl_framework.training.ranks import Ranks
from marl_framework.training.signals import interruptible


class Patient:
    """A training that waits until it is asked to end after its step."""

    def __init__(self, hears: bool) -> None:
        self._hears, self._ended = hears, False

    def interrupt(self) -> None:
        self._ended = self._hears

    def train(self) -> None:
        inside, outside = os.pipe()
        os.set_blocking(outside, False)
        with interruptible(self.interrupt, Ranks()):
            signal.set_wakeup_fd(outside)  # none can come unseen before the process waits
            say(f"process {os.getpid()} trains")
            while not self._ended:
                os.read(inside, 1)
            say("ended after its step")


def say(text: str) -> None:
    os.write(sys.stderr.fileno(), f"{text}\n".encode())  # in one piece, as others write too


def act(word: str) -> int:
    if word == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if word in ("hears", "works"):
        Patient(word == "hears").train()
        return 130
    say(f"{word}: {os.environ.get('OMP_NUM_THREADS')}, {os.environ.get('NUMBA_NUM_THREADS')}")
    return {"done": 0, "refuses": 2, "fails": 1, "raises": 70}[word]


def main() -> int:
    jobs, *pairs = sys.argv[1:]
    if not pairs:
        return act(jobs)
    this = [sys.executable, "-m", "tests.training.series"]
    commands = {name: [*this, word] for name, word in (pair.split("=") for pair in pairs)}
    codes = run_commands(commands, int(jobs))
    say(f"codes {codes}")
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(as_program(main))
