"""Signals that end a training run: after the current step, or at once."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType

from marl_framework.training.ranks import Ranks

URGENT = (signal.SIGINT, signal.SIGTERM)
WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Sent by a closing terminal, or by a scheduler before a time limit; often several times."""
SIGNALS = (*URGENT, *WARNINGS)
_PATIENCE = 20.0
"""Time for a rank to end its training step [s]; torchrun kills processes after 30 s."""


@contextmanager
def interruptible(
    stop: Callable[[], None], ranks: Ranks, patience: float = _PATIENCE
) -> Iterator[None]:
    """End the training after the current step on a signal; at once on a second SIGINT or SIGTERM.

    SIGHUP, SIGUSR1 and SIGUSR2 never end the training at once; signals that the caller ignores
    stay ignored, as SIGHUP under `nohup`. A rank that waits inside a driver for a dead rank cannot
    run Python's signal handlers; such a process is ended `patience` seconds after the signal.

    `stop` ends the training after the current step; `patience` is the time for one of several ranks
    to end this step [s].
    """
    urged = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal urged
        if urged and number in URGENT:
            raise KeyboardInterrupt
        urged = urged or number in URGENT
        stop()

    with handled(interrupt), _end_if_stuck(patience) if ranks.count > 1 else nullcontext():
        yield


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], None], numbers: Sequence[int] = SIGNALS
) -> Iterator[None]:
    """Install a handler for signals, except warnings that the caller ignores."""
    previous = {
        number: signal.signal(number, handler)
        for number in numbers
        if number in URGENT or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


@contextmanager
def _end_if_stuck(patience: float) -> Iterator[None]:
    """End this process `patience` seconds after a signal, even if the main thread waits.

    The interpreter writes each signal's number to a socket at once, before calling any handler.
    """
    inside, outside = socket.socketpair()
    outside.setblocking(False)
    done = threading.Event()

    def watch() -> None:
        with suppress(OSError):
            while number := inside.recv(1):
                if number[0] in SIGNALS and not done.wait(patience):
                    print(
                        f"error: step still running {patience:g} s after a signal", file=sys.stderr
                    )
                    os._exit(1)

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    earlier = signal.set_wakeup_fd(outside.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        done.set()
        outside.close()
        watcher.join()
        inside.close()
