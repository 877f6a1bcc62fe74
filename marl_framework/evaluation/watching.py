"""Follows a training run and its latest checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from marl_framework.config.errors import ConfigError
from marl_framework.runs.history import state_of

_SECONDS = 5.0


def latest_teams(run: Path, wait: Callable[[float], None] = time.sleep) -> Iterator[Path]:
    """Yield the last checkpoint of a run after each change until its training ends.

    Args:
        run: run folder of a training, finished or not.
        wait: function that waits for some seconds.

    Raises:
        ConfigError: the run has neither a training in progress nor a checkpoint.
    """
    last, seen = run / "checkpoints" / "last.pt", None
    while True:
        training = state_of(run) == "in training"  # first, to miss no last checkpoint
        newest = last.stat().st_mtime_ns if last.is_file() else None
        if newest != seen:
            seen = newest
            yield last
        elif training:
            wait(_SECONDS)
        elif seen is None:
            raise ConfigError(f"--watch {run} has no checkpoint and no training; name a run folder")
        else:
            return
