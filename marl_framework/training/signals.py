"""Signals that end a training run: after the current step, or at once."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType

from marl_framework.training.ranks import Ranks

URGENT = (signal.SIGINT, signal.SIGTERM)
WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A closing terminal, and what schedulers send some time before the end; often several times."""
SIGNALS = (*URGENT, *WARNINGS)
_PATIENCE = 20.0
"""Seconds that a rank may take to end its training step; torchrun kills after 30."""


@contextmanager
def interruptible(
    stop: Callable[[], None], ranks: Ranks, patience: float = _PATIENCE
) -> Iterator[None]:
    """Let a signal end the training after its current step; a second SIGINT or SIGTERM at once.

    SIGHUP, SIGUSR1 and SIGUSR2 are warnings: they never end it at once, and stay ignored where
    the caller ignores them, as `nohup` does SIGHUP. One of several ranks may wait inside a driver
    for a dead rank, where Python's handlers never run; it ends some time after the signal.

    Args:
        stop: ends the training after its current step.
        ranks: place of this process among the ranks.
        patience: time that one of several ranks may take to end its step [s].
    """
    urged = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal urged
        if urged and number in URGENT:
            raise KeyboardInterrupt
        urged = urged or number in URGENT
        stop()

    with handled(interrupt), _ended_if_stuck(patience) if ranks.count > 1 else nullcontext():
        yield


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a handler take all these signals, except warnings that the caller ignores."""
    heard = [number for number in WARNINGS if signal.getsignal(number) != signal.SIG_IGN]
    earlier = {number: signal.signal(number, handler) for number in (*URGENT, *heard)}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


@contextmanager
def _ended_if_stuck(patience: float) -> Iterator[None]:
    """End this process some time after a signal, even if its main thread waits.

    The interpreter writes each signal's number to a socket at once, before any handler.
    """
    inside, outside = socket.socketpair()
    outside.setblocking(False)
    done = threading.Event()

    def watch() -> None:
        with suppress(OSError):
            while number := inside.recv(1):
                if number[0] in SIGNALS and not done.wait(patience):
                    print(f"error: still waiting {patience:g} s after a signal", file=sys.stderr)
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
