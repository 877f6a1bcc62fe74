"""Locks of run folders, which the system releases when a process ends."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import read_json
from marl_framework.runs.process import is_alive

LOCK = ".lock"
"""File in a run folder that the training process locks."""


class RunLock:
    """Locks a run folder for this process; the system releases the lock when the process ends.

    Raises ConfigError if another process holds the lock, or the lock file cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be opened: {error.strerror}") from error
        self.release = weakref.finalize(self, os.close, handle)
        """Releases the lock."""
        process = read_json(folder / "status.json", "process")
        held = False
        try:
            _lock(handle)
        except BlockingIOError:
            held = True
        except OSError:  # no locks on this file system: check the recorded process instead
            state = read_json(folder / "status.json").get("state")
            held = state == "training" and bool(is_alive(process))
        if held:
            self.release()
            known = process and is_alive(process) is not False  # else of an earlier training
            holder = f" (process {process['number']} on {process['host']})" if known else ""
            raise ConfigError(
                f"run name {folder.name}: a training run with this name is in progress{holder}; "
                "wait for its end, stop it or choose another name"
            )


def _lock(handle: int) -> None:
    """Lock a file; raise BlockingIOError if it is locked other than by `is_locked`."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:  # also while `is_locked` shares the lock, which is over at once
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises if it is not shared


def is_locked(folder: Path) -> bool:
    """Return whether any process, including this one, holds the lock of a run folder."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def folder_guard(folder: Path) -> Iterator[None]:
    """Lock a folder of runs briefly, while run folders are created or moved."""
    handle = None
    with suppress(OSError):  # without locks, rename and mkdir are still atomic
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)
