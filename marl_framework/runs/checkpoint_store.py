"""Write, retain and find the checkpoints of a run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from marl_framework.runs.files import link_file

LAST, BEST = "last.pt", "best.pt"
_NUMBERED = re.compile(r"step-[0-9]{8,}\.pt")


class CheckpointStore:
    """Writes the checkpoints of a run; keeps the `kept` newest and the best.

    The newest is `step-<training step>.pt`, with `last.pt` as a hard link. If a write fails, for
    example on a full disk, earlier checkpoints remain and the first failure is reported.
    """

    def __init__(
        self,
        folder: Path,
        kept: int,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._kept = kept
        self._report = report
        self._clock = clock
        self._saved_at = clock()
        self._failed = False

    def minutes(self) -> float:
        """Return the minutes since the last attempt to save, or since the start."""
        return (self._clock() - self._saved_at) / 60

    def save(self, step: int, payload: Mapping[str, Any]) -> bool:
        """Write the newest checkpoint and delete old ones; return whether the write succeeded."""
        path, last = self._folder / f"step-{step:08d}.pt", self._folder / LAST
        self._saved_at = self._clock()
        if not self._write(path, save_checkpoint, path, payload):
            return False
        if not self._write(last, link_file, path, last):
            return False
        for old in numbered_checkpoints(self._folder)[self._kept :]:
            with suppress(OSError):
                old.unlink()
        return True

    def save_best(self, payload: Mapping[str, Any]) -> bool:
        """Write the best checkpoint; return whether the write succeeded."""
        path = self._folder / BEST
        return self._write(path, save_checkpoint, path, payload)

    def _write(self, path: Path, write: Callable[..., None], *arguments: Any) -> bool:
        try:
            write(*arguments)
        except OSError as error:
            if not self._failed:
                self._report(
                    f"warning: {path} could not be written: {error.strerror or error}; earlier "
                    "checkpoints are intact"
                )
            self._failed = True
            return False
        self._failed = False
        return True


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Return the files `step-<training step>.pt`, newest first."""
    files = [path for path in folder.glob("step-*.pt") if _NUMBERED.fullmatch(path.name)]
    return sorted(files, key=lambda path: int(path.stem[5:]), reverse=True)


def newest_checkpoint(folder: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the newest readable checkpoint, or None if the folder has no checkpoints.

    Damaged checkpoints are reported; if another is readable, they are renamed to `*.damaged`.
    Raises ConfigError if there are checkpoints, but none can be read.
    """
    candidates = [*numbered_checkpoints(folder), folder / LAST, folder / BEST]
    damaged: list[Path] = []
    for path in candidates:
        if not os.path.lexists(path) or any(_same_file(path, other) for other in damaged):
            continue
        try:
            payload = load_checkpoint(path)
            step = int(payload["training_step"])
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            damaged.append(path)
            report(f"warning: {error if isinstance(error, ConfigError) else f'{path}: unusable'}")
            continue
        for bad in damaged:
            with suppress(OSError):
                os.replace(bad, bad.with_name(f"{bad.name}.damaged"))
        if damaged:
            report(f"warning: continuing from {path}, training step {step}")
        return payload
    if damaged:
        run = folder.parent
        raise ConfigError(
            f"{folder}: no checkpoint in this folder can be read; start a new run, after python "
            f"-m marl_framework.history --runs {run.parent} archive {run.name}"
        )
    return None


def _same_file(first: Path, second: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(first, second)
    return False
