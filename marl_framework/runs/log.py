"""Log of a run: the printed text, in the file `train.log` of the run folder."""

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
_READER_GONE = (errno.EPIPE, errno.EIO, errno.ENOSPC)  # closed pipe or terminal, full disk


class RunLog:
    """Copies printed text to the log of a run; a context manager for the whole command.

    The text stays in memory until `attach` sets the run folder. A traceback that ends the command
    is logged too. Output of C libraries, which bypasses `sys.stdout` and `sys.stderr`, is not.
    """

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._path: Path | None = None
        self._file: IO[bytes] | None = None
        self._warned = False
        self._streams = ExitStack()

    def attach(self, folder: Path) -> None:
        """Write the pending text, and all later text, to the log in this folder."""
        self._path = folder / LOG
        try:
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (until `__exit__`)
        except OSError as error:
            self._warn(error)
        self.write("".join(self._pending))

    def write(self, text: str) -> None:
        """Add text to the log only; report the first failure."""
        if self._path is None:
            self._pending.append(text)
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
        """Copy text that is printed to the current `sys.stdout` and `sys.stderr`."""
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (cast(TextIO, LoggedStream(stream, self)) for stream in streams)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams

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
    """Stream that drops text once its terminal or pipe is closed, instead of raising an error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text; drop it if the reader is gone."""
        with self._ignore_lost_reader():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._ignore_lost_reader():
            self._stream.flush()

    @contextmanager
    def _ignore_lost_reader(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _READER_GONE:
                raise
            with suppress(OSError, ValueError):  # so that Python's flush at exit succeeds, too
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LoggedStream(Screen):
    """Stream whose text is logged, too; write to `screen` or `log` to reach only one of both."""

    def __init__(self, stream: TextIO, log: RunLog) -> None:
        super().__init__(stream)
        self.screen = cast(TextIO, Screen(stream))
        self.log = log

    def write(self, text: str) -> int:
        """Write text to the stream and the log."""
        self.log.write(text)
        return super().write(text)
