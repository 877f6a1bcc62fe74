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
from typing import Protocol

from marl_framework.training.ranks import Ranks

URGENT = (signal.SIGINT, signal.SIGTERM)
WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A closing terminal, and what schedulers send some time before the end; often several times."""
SIGNALS = (*URGENT, *WARNINGS)
_PATIENCE = 20.0
"""Seconds that a rank may take to end its training step; torchrun kills after 30."""


class Interruptible(Protocol):
    """A trainer."""

    def interrupt(self) -> None:
        """End after the current training step."""


@contextmanager
def interruptible(trainer: Interruptible, ranks: Ranks) -> Iterator[None]:
    """Let a signal end the training after its current step; a second SIGINT or SIGTERM at once.

    SIGHUP, SIGUSR1 and SIGUSR2 are warnings: they never end it at once, and stay ignored where
    the caller ignores them, as `nohup` does SIGHUP.

    One of several ranks may wait inside a driver for a rank that is dead, where Python's handlers
    never run. It ends all the same, a while after the signal.
    """
    urged = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal urged
        if urged and number in URGENT:
            raise KeyboardInterrupt
        urged = urged or number in URGENT
        trainer.interrupt()

    with handled(interrupt), _ended_if_stuck() if ranks.count > 1 else nullcontext():
        yield


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a handler take all these signals, but warnings that the caller ignores."""
    heard = [number for number in WARNINGS if signal.getsignal(number) != signal.SIG_IGN]
    earlier = {number: signal.signal(number, handler) for number in (*URGENT, *heard)}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


@contextmanager
def _ended_if_stuck() -> Iterator[None]:
    """End this process `_PATIENCE` after a signal, whatever its main thread waits for.

    The interpreter writes each signal's number to a socket at once, before any handler.
    """
    inside, outside = socket.socketpair()
    outside.setblocking(False)
    done = threading.Event()

    def watch() -> None:
        with suppress(OSError):
            while number := inside.recv(1):
                if number[0] in SIGNALS and not done.wait(_PATIENCE):
                    print(f"error: still waiting {_PATIENCE:g} s after a signal", file=sys.stderr)
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
