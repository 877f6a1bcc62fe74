"""What all command lines share."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from marl_framework.config.errors import ConfigWarning

BAD_INPUT = 2
"""Exit code."""


class Parser(argparse.ArgumentParser):
    """Ends with one line and `BAD_INPUT` where arguments are wrong, like every other bad input."""

    def error(self, message: str) -> NoReturn:
        """Exit with one line."""
        self.exit(BAD_INPUT, f"error: {message}\n")


def add_overrides(
    parser: argparse.ArgumentParser,
    meaning: str = "override a key of the params file; may be repeated",
) -> None:
    """Add `--set SECTION.KEY=VALUE`, read into `overrides`."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help=meaning,
    )


def add_checkpoint(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add `--checkpoint RUN_OR_FILE`, a trained team."""
    parser.add_argument(
        "--checkpoint",
        required=required,
        metavar="RUN_OR_FILE",
        help="trained team: a checkpoint, or a run folder (its best.pt, else last.pt)",
    )


@contextmanager
def told_warnings(tell: bool = True) -> Iterator[None]:
    """Print what is odd about a configuration, one line each, where `tell` is set."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        yield
    for line in dict.fromkeys(str(warning.message) for warning in caught if tell):
        print(f"warning: {line}", file=sys.stderr)


def to_pipe(main: Callable[[], int]) -> int:
    """Run a command line; readers of its output may stop early (`… | head`), without a traceback.

    Returns:
        The exit code of `main`, or 1 where nobody reads its output any more.
    """
    try:
        code = main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    return code
