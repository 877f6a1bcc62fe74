"""Turns the errors of a command into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Protocol

from marl_framework.command_line import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    TRAINING_CONTINUES,
    describe_os_error,
    plain_warnings,
    warn,
)
from marl_framework.config.errors import ConfigError
from marl_framework.runs.log import RunLog


class ReportedError(RuntimeError):
    """An error that another process has reported.

    Attributes:
        exit_code: exit code of the command.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Place(Protocol):
    """The place of a process among those that run a command together."""

    @property
    def leads(self) -> bool:
        """Whether this process reports errors."""
        ...

    def wait_for_leader(self) -> None:
        """Wait until the process that leads has ended; return at once in that process."""
        ...


def guarded(
    run: Callable[[RunLog], int],
    ranks: Place | None = None,
    again: str = TRAINING_CONTINUES,
) -> int:
    """Run a command; report an error as one line, which its log has too.

    Args:
        run: the command, which attaches the log to a run folder.
        ranks: the place of this process; only the process that leads reports errors.
        again: how to continue after a file could not be written.

    Returns:
        0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    leads = ranks is None or ranks.leads
    log = RunLog()
    with log if leads else nullcontext():
        try:
            with plain_warnings(leads):
                code = run(log)
            if leads:
                sys.stdout.flush()  # here a lost reader does no harm
            return code
        except ConfigError as error:
            if leads:
                warn(f"error: {error}")
            code = BAD_INPUT
        except ReportedError as error:
            code = error.exit_code
        except KeyboardInterrupt:  # before or after the training
            warn("interrupted")
            return INTERRUPTED
        except OSError as error:
            warn(describe_os_error(error, again))
            return FAILED
        if ranks is not None:
            ranks.wait_for_leader()
        return code
