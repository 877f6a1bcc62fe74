"""Trains several runs: one after the other, or at the same time in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Protocol, TextIO, cast

from marl_framework.command_line import BAD_INPUT, FAILED, INTERRUPTED, describe_os_error
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.runs.log import RunLog, Screen
from marl_framework.training.rounds_command import guarded

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
"""What PyTorch and numba read when they are loaded."""


class TrainOne(Protocol):
    """Trains a run; returns its exit code. Can be pickled."""

    def __call__(self, config: Config, *, run_name: str, log: RunLog) -> int:
        """Train.

        Args:
            config: what to train.
            run_name: folder below `logging.directory`.
            log: is attached to the run folder.
        """


def check_jobs(jobs: int, several: bool, option: str) -> None:
    """Check `--jobs`.

    Args:
        jobs: its value.
        several: whether there may be several runs.
        option: that asks for them.

    Raises:
        ConfigError: it is no number of runs, or there is one run alone.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}: give a number of trainings at once, 1 or more")
    if jobs > 1 and not several:
        raise ConfigError(f"--jobs {jobs}: goes with {option}; there is one training")


def train_runs(
    runs: Mapping[str, Config],
    train: TrainOne,
    log: RunLog,
    jobs: int,
    title: Callable[[str, Config], str],
) -> int:
    """Train all runs; a failed one does not keep the others from being trained.

    Args:
        runs: configuration by run name.
        train: trains one run.
        log: of the command.
        jobs: runs at the same time: 1 in this process, more in processes of their own.
        title: returns a line about a run, which is printed before it.

    Returns:
        0 done, 1 where one failed, 2 where the input of one was bad, 130 interrupted.
    """
    if jobs > 1:
        return _train_at_once(runs, train, title, jobs)
    codes = [0]
    for name, config in runs.items():
        print(title(name, config), flush=True)
        try:
            codes.append(train(config, run_name=name, log=log))
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            codes.append(BAD_INPUT)
        except OSError as error:
            print(describe_os_error(error), file=sys.stderr, flush=True)
            codes.append(FAILED)
        if codes[-1] == INTERRUPTED:
            return INTERRUPTED
    return max(codes)


# Several at once -------------------------------------------------------------------------


def _train_at_once(
    runs: Mapping[str, Config],
    train: TrainOne,
    title: Callable[[str, Config], str],
    jobs: int,
) -> int:
    """Train runs in processes of their own, `jobs` at a time.

    Each process gets its share of the cores, and makes what it would make alone with as many
    threads. A signal is passed on to all of them. What they print begins with the run's name.
    """
    context = multiprocessing.get_context("spawn")  # CUDA forbids fork
    threads = share_of_cores(min(jobs, len(runs)))
    waiting = list(runs.items())
    running: dict[int, tuple[str, BaseProcess]] = {}
    codes = [0]
    with _passed_on(running) as asked_to_end:
        while running or (waiting and not asked_to_end):
            while waiting and len(running) < jobs and not asked_to_end:
                name, config = waiting.pop(0)
                print(title(name, config), flush=True)
                child = context.Process(
                    target=_train_alone, args=(config, name, train, sys.orig_argv), name=name
                )
                with threads_of_children(threads):
                    child.start()
                running[child.sentinel] = name, child
                if asked_to_end:  # while it started
                    child.terminate()
            for sentinel in wait(list(running)):
                name, ended = running.pop(cast(int, sentinel))
                ended.join()
                codes.append(_exit_code(name, ended, bool(asked_to_end)))
    return INTERRUPTED if asked_to_end or INTERRUPTED in codes else max(codes)


def share_of_cores(jobs: int) -> int:
    """Return the number of threads of each of so many processes."""
    from marl_framework.device import usable_cores  # it loads PyTorch

    return max(1, usable_cores() // jobs)


def _exit_code(name: str, child: BaseProcess, asked_to_end: bool) -> int:
    code = child.exitcode
    if code is not None and code >= 0:
        return code
    if asked_to_end:  # before it could listen
        return INTERRUPTED
    print(f"error: {name}: its process was killed by signal {-(code or 0)}", file=sys.stderr)
    return FAILED


@contextmanager
def _passed_on(running: Mapping[int, tuple[str, BaseProcess]]) -> Iterator[Sequence[int]]:
    """Pass signals on to the processes; yield those that came."""
    came: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        came.append(number)
        for _, child in list(running.values()):
            if number == signal.SIGINT:  # it may still be loading libraries
                child.terminate()
            elif child.pid is not None and child.is_alive():
                os.kill(child.pid, number)

    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    earlier = {number: signal.signal(number, pass_on) for number in heard}
    try:
        yield came
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextmanager
def threads_of_children(number: int) -> Iterator[None]:
    """Give the processes that start now a number of threads each, where the user gave none."""
    new = {name: str(number) for name in _THREADS if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


# In the process of a run -----------------------------------------------------------------


def _train_alone(config: Config, name: str, train: TrainOne, command: list[str]) -> None:
    """Train; exit with the code of the run."""
    os.setsid()  # Ctrl-C comes from the first process alone
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.orig_argv = command  # for the records of the run
    sys.stdout, sys.stderr = (
        cast(TextIO, Named(stream, name)) for stream in (sys.stdout, sys.stderr)
    )
    sys.exit(guarded(lambda log: train(config, run_name=name, log=log)))


def _end_with_parent() -> None:
    """End this training after its step when the process that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class Named(Screen):
    """A stream whose lines begin with a name, and are written whole."""

    def __init__(self, stream: TextIO, name: str) -> None:
        super().__init__(stream)
        self._name, self._line = name, ""

    def write(self, text: str) -> int:
        """Write the lines that are complete."""
        *lines, self._line = (self._line + text).split("\n")
        super().write("".join(f"{self._name} | {line}\n" for line in lines))
        return len(text)

    def isatty(self) -> bool:
        """Say that lines are wanted: a block cannot be redrawn among those of others."""
        return False
