"""Options, messages and signals of all command lines."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from marl_framework.config.errors import ConfigError, ConfigWarning

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes."""
if os.name != "posix":  # no file locks and signals
    print("error: marl_framework needs Linux or macOS; use WSL 2 on Windows", file=sys.stderr)
    sys.exit(BAD_INPUT)
TRAINING_CONTINUES = "a training that has begun continues with --resume"

Handler = Callable[[int, FrameType | None], Any]


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments like all bad input: one line and exit code `BAD_INPUT`."""

    def error(self, message: str) -> NoReturn:
        """Exit with one line."""
        self.exit(BAD_INPUT, f"error: {message}\n")


def add_overrides(
    parser: argparse.ArgumentParser, text: str = "override a key of the params file; repeatable"
) -> None:
    """Add `--set SECTION.KEY=VALUE`, read into `overrides`."""
    action = parser.add_argument("--set", dest="overrides", action="append", default=[], help=text)
    action.metavar = "SECTION.KEY=VALUE"


def add_checkpoint(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add `--checkpoint RUN_OR_FILE`, a trained team."""
    text = "trained team: a checkpoint file, a run folder (its best.pt, else its last.pt), or "
    text += "pretrained:student, which comes with the library"
    parser.add_argument("--checkpoint", required=required, metavar="RUN_OR_FILE", help=text)


@contextmanager
def plain_warnings(shown: bool = True) -> Iterator[None]:
    """Print each `ConfigWarning` once, as a line `warning: …` on standard error, if `shown`."""
    printed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ConfigWarning)
        other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not issubclass(category, ConfigWarning):
                other(message, category, *rest, **more)
                return
            text = str(message)
            # A configuration may be read again, then with a part of its files and overrides.
            if shown and not any(text in earlier for earlier in printed):
                printed.append(text)
                warn(f"warning: {text}")

        warnings.showwarning = show
        yield


def warn(text: str) -> None:
    """Print a line on standard error at once."""
    print(text, file=sys.stderr, flush=True)


def describe_os_error(error: OSError, again: str = TRAINING_CONTINUES) -> str:
    """Return the last line of a command that cannot write a file; `again` says how to continue."""
    reason = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    return f"error: {reason}; fix it; {again}"


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise a ConfigError where the file or folder of `--out` cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--out {out} cannot be written: {reason}; name another place") from error


def as_program(main: Callable[[], int]) -> int:
    """Run a command line as a program, without tracebacks after Ctrl-C or without a reader.

    Returns:
        The exit code of `main`, 1 if nobody reads its output any more, 130 after Ctrl-C.
    """
    _replace(signal.default_int_handler, _end)
    gc.disable()  # looking for garbage takes a fifth of the time that libraries need to load
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # and no file may take its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (to the end)
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return FAILED
    finally:  # while Python ends
        gc.enable()
        _replace(signal.default_int_handler, _end)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.SIG_IGN)  # all is written; the exit code stays
    return code


def loaded() -> None:
    """Let Ctrl-C raise a KeyboardInterrupt, and collect garbage, once libraries are loaded.

    Raised inside an import it may become another error, so it ends a program at once before.
    """
    _replace(_end, signal.default_int_handler)
    if not gc.isenabled():
        gc.freeze()  # libraries stay to the end
        gc.enable()


def _replace(handler: Handler, other: Handler) -> None:
    if signal.getsignal(signal.SIGINT) is handler:
        signal.signal(signal.SIGINT, other)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")  # print may be interrupted in another print
    os._exit(INTERRUPTED)
