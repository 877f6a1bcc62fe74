"""Outputs of a training run: console, logs, checkpoints and figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from marl_framework.config.derived import passes
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.evaluation.figures import mission_figure
from marl_framework.evaluation.flight import FlightRecord
from marl_framework.runs.checkpoint_store import CheckpointStore
from marl_framework.runs.folder import RunFolder
from marl_framework.stage_timer import StageTimer
from marl_framework.training.console import ProgressView
from marl_framework.training.hardware import HardwareMonitor
from marl_framework.training.logging import make_logger
from marl_framework.training.profiling import profile_steps


class Outputs(ExitStack):
    """All outputs of one training, as a context manager.

    Ranks other than 0 write nothing, but run the same loop and make the same collective calls.

    `run` is None on ranks other than 0. When resuming, `first_step` training steps were made
    before. `profile` is the number of training steps to record with torch.profiler.

    Attributes:
        logger: logger of the metrics.
        say: function that prints a line.
        end_step: function to call after each training step, for the profiler.
    """

    def __init__(
        self,
        config: Config,
        device: torch.device,
        run: RunFolder | None,
        first_step: int = 0,
        profile: int = 0,
    ) -> None:
        super().__init__()
        self._log, self._run = config.logging, run
        enter, kept = self.enter_context, config.logging.checkpoints_kept
        steps = config.learning.training_steps
        self._progress = enter(ProgressView(steps, first_step)) if run else None
        self.say: Callable[[str], None] = self._progress.print if self._progress else lambda _: None
        try:
            self.logger = enter(make_logger(config, run, first_step, self.say))
            self.end_step = enter(profile_steps(profile, run.path)) if run else lambda: None
            self._hardware = enter(HardwareMonitor(device, run.path)) if run else None
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        self._store = CheckpointStore(run.checkpoints, kept, self.say) if run else None

    @property
    def hardware(self) -> dict[str, Any]:
        """Mean and maximum of each hardware metric."""
        return self._hardware.summary() if self._hardware else {}

    def report(self, step: int, known: Mapping[str, float], fresh: bool, timer: StageTimer) -> None:
        """Show the progress; if metrics are fresh, show and log the time share of each stage.

        `known` has the latest metrics. `fresh` says whether metrics were written in this step; if
        so, the timer is reset.
        """
        if self._progress is not None and self._hardware is not None:
            if fresh:
                speed, shares = timer.rates()["transitions"], timer.shares()
                measured = {f"share_{name}": share for name, share in shares.items()}
                measured |= {"transitions_per_second": speed, **self._hardware.means()}
                self.logger.write(step, measured)
                names = {"return": "return", "validation entropy": "validation_entropy"}
                numbers = {shown: known.get(name) for shown, name in names.items()}
                self._progress.update(step, {**numbers, "transitions/s": speed}, shares)
            else:
                self._progress.update(step)
        if fresh:
            timer.reset()

    def is_checkpoint_due(self, step: int, before: int) -> bool:
        """Return whether this rank requests a checkpoint after the steps in (before, step]."""
        if self._store is None:
            return False
        by_step = passes(self._log.checkpoint_interval, before, step)
        return by_step or self._store.minutes() >= (self._log.checkpoint_minutes or float("inf"))

    def save(self, step: int, state: Mapping[str, Any], **known: Any) -> bool:
        """Write the newest checkpoint and the run's status; return whether the write succeeded."""
        if self._run is None or self._store is None:
            return True
        if not self._store.save(step, state):
            return False
        self._run.write_status("training", training_step=step, **known)
        return True

    def save_best(self, state: Mapping[str, Any]) -> bool:
        """Write the best checkpoint; return whether the write succeeded."""
        return self._store is None or self._store.save_best(state)

    def draw(self, step: int, fly: Callable[[], FlightRecord]) -> None:
        """Draw a mission for the run folder and the logs; only rank 0 calls `fly`."""
        if self._run is None:
            return
        path = self._run.figures / "mission.png"
        try:
            mission_figure(fly(), 0, path)
            self.logger.figure(step, "mission", path)
        except (ConfigError, OSError) as error:  # a figure must not end a training
            reason = getattr(error, "strerror", None) or error
            self.say(f"warning: {path} could not be drawn: {reason}")
