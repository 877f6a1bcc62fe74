"""Follows a training run: hands over its latest team whenever there is a newer one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from marl_framework.config.errors import ConfigError
from marl_framework.runs.history import state_of

_SECONDS = 5.0


def latest_teams(run: Path, wait: Callable[[float], None] = time.sleep) -> Iterator[Path]:
    """Yield the last checkpoint of a run, again whenever it is newer, until its training ends.

    Args:
        run: run folder, of a training run under way or not.
        wait: waits for some seconds.

    Raises:
        ConfigError: no training is under way, and there is no checkpoint.
    """
    last, seen = run / "checkpoints" / "last.pt", None
    while True:
        training = state_of(run) == "in training"  # asked first: none is missed at the end
        newest = last.stat().st_mtime_ns if last.is_file() else None
        if newest != seen:
            seen = newest
            yield last
        elif training:
            wait(_SECONDS)
        elif seen is None:
            raise ConfigError(f"--watch {run}: no training is under way there, nor a checkpoint")
        else:
            return
