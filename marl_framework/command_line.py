"""Options, messages and signal handling of all command lines."""

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
if os.name != "posix":  # file locks and signals are missing
    print("error: marl_framework requires Linux or macOS; use WSL 2 on Windows", file=sys.stderr)
    sys.exit(BAD_INPUT)

Handler = Callable[[int, FrameType | None], Any]


class Parser(argparse.ArgumentParser):
    """Parser that reports invalid arguments in one line, with exit code `BAD_INPUT`."""

    def error(self, message: str) -> NoReturn:
        """Print the message in one line and exit."""
        self.exit(BAD_INPUT, f"error: {message}\n")


def add_overrides(
    parser: argparse.ArgumentParser,
    text: str = "override a key of the params file, or all keys of a file (@FILE); repeatable",
) -> None:
    """Add `--set SECTION.KEY=VALUE` or `--set @FILE`, which appends to `overrides`."""
    action = parser.add_argument("--set", dest="overrides", action="append", default=[], help=text)
    action.metavar = "SECTION.KEY=VALUE"


def add_checkpoint(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add `--checkpoint RUN_OR_FILE` for a trained team."""
    text = "trained team: a checkpoint file, a run folder (best.pt, else last.pt), or "
    text += "pretrained:student of the package"
    parser.add_argument("--checkpoint", required=required, metavar="RUN_OR_FILE", help=text)


def usable_cores() -> int:
    """Return the number of cores that this process may use, also in containers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def plain_warnings(shown: bool = True) -> Iterator[None]:
    """Print each `ConfigWarning` once, as a line `warning: …` on standard error, if `shown`."""
    printed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ConfigWarning)
        default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not issubclass(category, ConfigWarning):
                default(message, category, *rest, **more)
                return
            text = str(message)
            # Loading a configuration again, with fewer files and overrides, repeats a part.
            if shown and not any(text in earlier for earlier in printed):
                printed.append(text)
                warn(f"warning: {text}")

        warnings.showwarning = show
        yield


def warn(text: str) -> None:
    """Print a line to standard error in one piece, which no other process can divide."""
    print(f"{text}\n", end="", file=sys.stderr, flush=True)


def check_out(out: Path, *inputs: Path) -> None:
    """Raise a ConfigError if `--out` has no folder, is not a file, or is one of the input files."""
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the folder {out.parent} does not exist; create it")
    if not out.exists():
        return
    if not out.is_file():
        raise ConfigError(f"--out {out} is not a file; choose another path")
    if any(path.exists() and path.samefile(out) for path in inputs):
        raise ConfigError(f"--out {out} is an input of this command; choose another file")


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise a ConfigError if the file or folder of `--out` cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--out {out} cannot be written: {reason}; use another path") from error


def as_program(main: Callable[[], int]) -> int:
    """Run a command line as a program; print no traceback after Ctrl-C or on a closed pipe.

    Returns the exit code of `main`; 1 if the output's reader has closed the pipe, 130 after Ctrl-C.
    """
    _replace_handler(signal.default_int_handler, _exit_at_once)
    gc.disable()  # garbage collection would take a fifth of the libraries' import time
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed; keep other files from using the descriptor
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until exit)
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        warn("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return FAILED
    finally:  # prepare the shutdown of the interpreter
        gc.enable()
        _replace_handler(signal.default_int_handler, _exit_at_once)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.SIG_IGN)  # keep the exit code; all files are written
    return code


def loaded() -> None:
    """Enable KeyboardInterrupt on Ctrl-C and garbage collection; call after importing libraries.

    Before, Ctrl-C ends the program at once: a KeyboardInterrupt inside an import may turn into
    another error.
    """
    _replace_handler(_exit_at_once, signal.default_int_handler)
    if not gc.isenabled():
        gc.freeze()  # objects of libraries are never freed
        gc.enable()


def _replace_handler(old: Handler, new: Handler) -> None:
    if signal.getsignal(signal.SIGINT) is old:
        signal.signal(signal.SIGINT, new)


def _exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")  # not print, which the signal may have interrupted
    os._exit(INTERRUPTED)
