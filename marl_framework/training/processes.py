"""Run several trainings, each in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from marl_framework.command_line import BAD_INPUT, FAILED, INTERRUPTED, usable_cores, warn
from marl_framework.training.signals import URGENT, handled

_THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Environment variables that PyTorch and numba read on import."""
_POLL = 0.1
"""Time between checks of the processes [s]."""


def run_commands(commands: Mapping[str, Sequence[str]], jobs: int) -> dict[str, int]:
    """Run all commands, `jobs` at the same time; a failure does not stop the other commands.

    Each process gets an equal share of the cores. With `jobs` above 1 only errors and warnings are
    shown; read `train.log` of each run. After a signal no new run starts, and running ones end
    after their current step; a second SIGINT or SIGTERM ends all runs at once. Returns the exit
    codes by run name; `INTERRUPTED` for runs that did not start.
    """
    waiting = dict(commands)
    running: dict[str, subprocess.Popen[bytes]] = {}
    codes: dict[str, int] = {}
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in list(running.values()):
            _interrupt(process, received)

    def may_start() -> bool:
        return bool(waiting) and not received and INTERRUPTED not in codes.values()

    environment = dict(os.environ) | thread_variables(min(jobs, len(commands)))
    if sys.flags.safe_path:
        environment["PYTHONSAFEPATH"] = "1"
    output = None if jobs == 1 else subprocess.DEVNULL
    with handled(forward):
        try:
            while running or may_start():
                while may_start() and len(running) < jobs:
                    name = next(iter(waiting))
                    print(f"training: {name}", flush=True)
                    running[name] = process = subprocess.Popen(
                        waiting.pop(name), stdout=output, env=environment, start_new_session=True
                    )
                    if received:  # a signal arrived while the process started
                        _interrupt(process, received)
                time.sleep(_POLL)  # poll: a signal to another thread does not interrupt a wait
                for name, process in list(running.items()):
                    if (status := process.poll()) is not None:
                        del running[name]
                        codes[name] = _exit_code(name, status)
        finally:  # after an error in this process
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
    return {name: codes.get(name, INTERRUPTED) for name in commands}


def thread_variables(jobs: int) -> dict[str, str]:
    """Return environment variables that divide the cores equally among `jobs` processes.

    Numbers of threads that the user has set remain unchanged.
    """
    threads = str(max(1, usable_cores() // jobs))
    is_set = _THREADS[0] in os.environ  # numba uses no more threads than PyTorch
    return {} if is_set else {name: os.environ.get(name, threads) for name in _THREADS}


def _interrupt(process: subprocess.Popen[bytes], received: Sequence[int]) -> None:
    """End a run after the current step, or at once after two urgent signals."""
    urgent = [number for number in received if number in URGENT]
    for number in (signal.SIGUSR1,) if len(urgent) < 2 else URGENT:
        process.send_signal(number)


def _exit_code(name: str, status: int) -> int:
    if -status in (signal.SIGUSR1, *URGENT):  # interrupted before the handlers were installed
        return INTERRUPTED
    if status < 0:
        warn(f"error: {name}: the process was killed by signal {-status}")
        return FAILED
    code = status if status in (0, BAD_INPUT, INTERRUPTED) else FAILED
    if code == FAILED:
        warn(f"error: {name}: failed; see its train.log")
    return code
