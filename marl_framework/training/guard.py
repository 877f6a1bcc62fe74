"""Report the errors of a command as one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext

from marl_framework.command_line import BAD_INPUT, FAILED, INTERRUPTED, plain_warnings, warn
from marl_framework.config.errors import ConfigError
from marl_framework.runs.log import RunLog
from marl_framework.training.ranks import LeaderError, Ranks


def guarded(
    run: Callable[[RunLog], int],
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
    again: str = "continue a started training with --resume",
) -> int:
    """Run a command; report an error as one line on the screen and in the log.

    `run` attaches the log to a run folder. Only rank 0 reports errors. `again` is the advice after
    a file could not be written. Returns the exit code: 0 done, 1 failed, 2 bad input, 130
    interrupted.
    """
    leads, log = ranks.leads, RunLog()
    with log if leads else nullcontext():
        try:
            with plain_warnings(leads):
                code = run(log)
            if leads:
                sys.stdout.flush()  # now, while the log ignores a closed pipe
            return code
        except ConfigError as error:
            if leads:
                warn(f"error: {error}")
            code = BAD_INPUT
        except LeaderError as error:
            code = error.exit_code
        except KeyboardInterrupt:  # before or after the training
            warn("interrupted")
            return INTERRUPTED
        except OSError as error:
            reason = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            warn(f"error: {reason}; fix this problem; {again}")
            return FAILED
        ranks.wait_for_leader()
        return code
