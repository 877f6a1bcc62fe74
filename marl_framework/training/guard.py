"""Turns what went wrong in a training command into one line and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from marl_framework.command_line import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    describe_os_error,
    plain_warnings,
    warn,
)
from marl_framework.config.errors import ConfigError
from marl_framework.runs.log import RunLog
from marl_framework.training.ranks import LeaderError, Ranks


def guarded(run: Callable[[RunLog], int], ranks: Ranks | None = None) -> int:
    """Run a command; turn what went wrong into one line, which its log has too.

    Args:
        run: the command, which attaches the log to a run folder.
        ranks: the place of this process among those that train together; the first one speaks.

    Returns:
        0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    ranks = Ranks() if ranks is None else ranks
    log = RunLog()
    with log if ranks.leads else nullcontext():
        try:
            with plain_warnings(ranks.leads):
                return run(log)
        except ConfigError as error:
            if ranks.leads:
                warn(f"error: {error}")
            ranks.wait_for_leader()
            return BAD_INPUT
        except LeaderError as error:
            ranks.wait_for_leader()
            return error.exit_code
        except KeyboardInterrupt:  # before or after the training
            warn("interrupted")
            return INTERRUPTED
        except OSError as error:
            warn(describe_os_error(error))
            return FAILED
