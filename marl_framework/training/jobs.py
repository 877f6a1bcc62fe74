"""Trains several runs: one after the other, or at the same time in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Protocol, TextIO, cast

from marl_framework.command_line import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    as_program,
    describe_os_error,
    loaded,
    warn,
)
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.runs.guard import guarded
from marl_framework.runs.log import RunLog, Screen
from marl_framework.training.signals import SIGNALS, URGENT, handled

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
) -> dict[str, int]:
    """Train all runs; a failed one does not keep the others from being trained.

    Args:
        runs: configuration by run name.
        train: trains one run.
        log: of the command.
        jobs: runs at the same time: 1 in this process, more in processes of their own.
        title: returns a line about a run, which is printed before it.

    Returns:
        The exit code of each run by its name, see `worst`; runs that a signal kept from being
        begun were interrupted, too.
    """
    if jobs > 1:
        return _train_at_once(runs, train, title, jobs)
    codes: dict[str, int] = {}
    for number, (name, config) in enumerate(runs.items()):
        if number:
            log.detach()
        print(title(name, config), flush=True)
        try:
            codes[name] = train(config, run_name=name, log=log)
        except ConfigError as error:
            warn(f"error: {error}")
            codes[name] = BAD_INPUT
        except OSError as error:
            warn(describe_os_error(error))
            codes[name] = FAILED
        except Exception:  # of this run alone
            traceback.print_exc()
            codes[name] = FAILED
        if codes[name] == INTERRUPTED:
            break
    return {name: codes.get(name, INTERRUPTED) for name in runs}


def worst(codes: Mapping[str, int]) -> int:
    """Return the exit code of a command from those of its runs.

    0 done, 1 where one failed, 2 where the input of one was bad, 130 interrupted.
    """
    return max(codes.values(), default=0)


# Several at once -------------------------------------------------------------------------


def _train_at_once(
    runs: Mapping[str, Config],
    train: TrainOne,
    title: Callable[[str, Config], str],
    jobs: int,
) -> dict[str, int]:
    """Train runs in processes of their own, `jobs` at a time.

    Each process gets its share of the cores, and makes what it would make alone with as many
    threads. A signal is passed on to all of them. What they print begins with the run's name.
    """
    context = multiprocessing.get_context("spawn")  # CUDA forbids fork
    threads = share_of_cores(min(jobs, len(runs)))
    waiting = list(runs.items())
    running: dict[int, tuple[str, BaseProcess]] = {}
    codes: dict[str, int] = {}
    with _passed_on(running) as (came, woken), _ended_with_error(running):
        while True:
            while (
                waiting and len(running) < jobs and not came and INTERRUPTED not in codes.values()
            ):
                name, config = waiting.pop(0)
                print(title(name, config), flush=True)
                child = context.Process(
                    target=_train_alone, args=(config, name, train, sys.orig_argv), name=name
                )
                with threads_of_children(threads), _signals_held():
                    child.start()
                    running[child.sentinel] = name, child
            if not running:
                break
            for sentinel in cast(list[int], wait([*running, woken])):
                if sentinel == woken:  # the signal has been passed on
                    os.read(woken, 1)
                    continue
                name, ended = running.pop(sentinel)
                ended.join()
                codes[name] = _exit_code(name, ended.exitcode or 0, bool(came))
    return {name: codes.get(name, INTERRUPTED) for name in runs}


def share_of_cores(jobs: int) -> int:
    """Return the number of threads of each of so many processes."""
    from marl_framework.device import usable_cores  # it loads PyTorch

    return max(1, usable_cores() // jobs)


def _exit_code(name: str, code: int, asked_to_end: bool) -> int:
    if code >= 0:
        return code if code in (0, FAILED, BAD_INPUT, INTERRUPTED) else FAILED
    if asked_to_end and -code in (signal.SIGTERM, signal.SIGUSR1):  # before it could listen
        return INTERRUPTED
    warn(f"error: {name}: its process was killed by signal {-code}")
    return FAILED


@contextmanager
def _passed_on(
    running: Mapping[int, tuple[str, BaseProcess]],
) -> Iterator[tuple[Sequence[int], int]]:
    """Pass signals on to the processes; yield those that came, and a file that each wakes.

    They end after their steps, see `signals.interruptible`; after a second SIGINT or SIGTERM at
    once. The first is passed on as a warning: a scheduler may have sent it to the processes, too.
    """
    came: list[int] = []
    ignored = signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    warning = signal.SIGTERM if ignored else signal.SIGUSR1
    # Two that are urgent end a training at once; one more might end it before it can say so.
    urgent = tuple(number for number in URGENT if number != warning)

    def pass_on(number: int, frame: FrameType | None) -> None:
        came.append(number)
        at_once = number in URGENT and len([each for each in came if each in URGENT]) > 1
        for _, child in list(running.values()):
            for signal_of_child in urgent if at_once else (warning,):
                if child.pid is not None and child.is_alive():
                    os.kill(child.pid, signal_of_child)

    woken, waker = os.pipe()  # one that comes just before `wait` would be passed on after it
    os.set_blocking(waker, False)
    with handled(pass_on):
        earlier_waker = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        try:
            yield came, woken
        finally:
            signal.set_wakeup_fd(earlier_waker)
            os.close(woken)
            os.close(waker)


@contextmanager
def _ended_with_error(running: Mapping[int, tuple[str, BaseProcess]]) -> Iterator[None]:
    """Let an error, such as no memory for one process more, end those that run."""
    try:
        yield
    except BaseException:
        for _, child in running.values():
            child.terminate()
        for _, child in running.values():
            child.join()
        raise


@contextmanager
def threads_of_children(number: int) -> Iterator[None]:
    """Give the processes that start now a number of threads each, unless the user gave one."""
    given = _THREADS[0] in os.environ  # numba's threads are no more than PyTorch's
    new = [] if given else [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(new, str(number)))
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back, here until a process is known, and in that until it has loaded."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the process of a run -----------------------------------------------------------------


def _train_alone(config: Config, name: str, train: TrainOne, command: list[str]) -> None:
    """Train; exit with the code of the run."""
    os.setsid()  # Ctrl-C comes from the first process alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.orig_argv = command  # for the records of the run

    streams: list[Named] = []

    def work() -> int:
        loaded()
        streams.extend(Named(stream, name) for stream in (sys.stdout, sys.stderr))
        sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in streams)
        return guarded(lambda log: train(config, run_name=name, log=log))

    try:
        code = as_program(work)
    finally:  # signals are ignored now
        for stream in streams:
            stream.end()
    sys.exit(code)


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

    def writelines(self, lines: Iterable[str]) -> None:
        """Write them one by one."""
        for line in lines:
            self.write(line)

    def end(self) -> None:
        """Write a last line that is not complete."""
        if self._line:
            self.write("\n")

    def isatty(self) -> bool:
        """Say that lines are wanted: a block cannot be redrawn among those of others."""
        return False
