"""The log of a run: what it printed, as plain text in `train.log` of its folder."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self, TextIO, cast

LOG = "train.log"
_NOBODY_READS = (errno.EPIPE, errno.EIO)  # a closed pipe, a closed terminal


class RunLog:
    """Copies what is printed to the log of a run; a context manager for the whole command.

    The text waits in memory until `attach` names the run folder. A traceback that ends the command
    is logged too. What a library in C writes is not, as only `sys.stdout` and `sys.stderr` are.
    """

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._path: Path | None = None
        self._file: IO[bytes] | None = None
        self._warned = False
        self._streams = ExitStack()

    def attach(self, folder: Path) -> None:
        """Append to the log in this folder from now on, after what came before."""
        self._path = folder / LOG
        try:
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (until `__exit__`)
        except OSError as error:
            self._warn(error)
        self.write("".join(self._waiting))

    def write(self, text: str) -> None:
        """Add text to the log alone; a failure is reported once."""
        if self._path is None:
            self._waiting.append(text)
        elif self._file is not None:
            try:
                self._file.write(text.encode(errors="backslashreplace"))
            except OSError as error:
                self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            reason = error.strerror or error
            print(f"warning: {self._path} could not be written: {reason}; the run continues")

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Copy what goes to `sys.stdout` and `sys.stderr`, whatever they are now."""
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (cast(TextIO, LoggedStream(stream, self)) for stream in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before

    def __enter__(self) -> Self:
        self._streams.enter_context(self.copying())
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._streams.close()
        if error is not None:
            self.write("".join(traceback.format_exception(error)))
        if self._file is not None:
            self._file.close()


class Screen:
    """A stream that may lose its reader: a closed terminal or pipe does not end a training run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write; drop the text where nobody reads it."""
        with self._tolerant():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush."""
        with self._tolerant():
            self._stream.flush()

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
            with suppress(OSError, ValueError):  # also for what Python flushes at its end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LoggedStream(Screen):
    """A stream whose text goes to a log too; `screen` and `log` take text for one of them."""

    def __init__(self, stream: TextIO, log: RunLog) -> None:
        super().__init__(stream)
        self.screen = cast(TextIO, Screen(stream))
        self.log = log

    def write(self, text: str) -> int:
        """Write to both."""
        self.log.write(text)
        return super().write(text)
