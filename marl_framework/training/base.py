"""Base class of the trainers of teams, map predictors and students."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.runs.checkpoint import check_weights, misfit, save_checkpoint
from marl_framework.runs.folder import RunFolder
from marl_framework.training.ranks import Ranks
from marl_framework.training.writers import check_writers


class NumericalError(ArithmeticError):
    """Raised when a training stops because too many updates were not finite."""


class RunTrainer(ABC):
    """Trains networks step by step; can be interrupted, saved and resumed.

    Attributes:
        mark: key that only checkpoints of this kind of training contain.
        modules: all networks by name.
        interrupted: whether to stop after the current step.
        skipped: number of updates skipped because they were not finite, [] on the device.

    Raises:
        ConfigError: a writer of `logging.writers` is not installed.
    """

    mark: ClassVar[str]
    modules: Mapping[str, nn.Module]
    _weights_read: Mapping[str, str]
    """Checksums of the weights and files that the training reads; see `check_weights`."""

    def __init__(self, config: Config, device: torch.device, ranks: Ranks | None = None) -> None:
        check_writers(config.logging.writers)
        self.config = config
        self.device = device
        self.ranks = Ranks() if ranks is None else ranks
        self.interrupted = False
        self.skipped = torch.zeros((), device=device)
        self._seconds_before = 0.0
        self._started = time.perf_counter()

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps made so far."""

    @abstractmethod
    def is_over(self) -> bool:
        """Return whether the training is complete."""

    @abstractmethod
    def train(self, run: RunFolder | None, profile: int = 0) -> dict[str, Any]:
        """Train to the end, or to the end of the step in which `interrupt` is called.

        `run` is None on ranks other than 0. `profile` is the number of training steps to record
        with torch.profiler. Returns the content of `summary.json`: `results`, `timing`, `machine`.
        Raises NumericalError if more updates than `learning.max_skipped_updates` were not finite.
        """

    def notes(self) -> list[str]:
        """Return lines about the machine, printed before the training."""
        return []

    def interrupt(self) -> None:
        """Stop `train` after the current step; usable in signal handlers."""
        self.interrupted = True

    def seconds(self) -> float:
        """Return the time of training in this process and before a resumption [s]."""
        return self._seconds_before + time.perf_counter() - self._started

    # Saving -------------------------------------------------------------------------------

    @abstractmethod
    def own_state(self) -> dict[str, Any]:
        """Return the part of `state_dict` that this kind of training adds."""

    @abstractmethod
    def load_own_state(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        """Load what `own_state` returned."""

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for resuming; all ranks must call this method together."""
        return {
            **self.own_state(),
            "config": config_to_dict(self.config),
            "training_step": self.steps,
            "skipped_updates": self.skipped,
            "device": self.device.type,
            "seconds": self.seconds(),
            "weights_read": self._weights_read,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], report: Callable[[str], None] = print
    ) -> None:
        """Load what `state_dict` returned; report what cannot be reproduced exactly.

        Raises ConfigError if the state belongs to another kind of training or does not fit the
        configuration, or a file that the training reads has changed.
        """
        for name, module in self.modules.items():
            if not isinstance(state.get(name), Mapping):
                raise ConfigError(
                    f"checkpoint: the key {name} is missing; use a checkpoint of this version"
                )
            if where := misfit(module.state_dict(), state[name]):
                raise ConfigError(
                    f"checkpoint: {name} does not fit the configuration: {where}; lattice, "
                    "num_actions, observation and networks cannot change in a run; start a new run"
                )
        check_weights(self._weights_read, state.get("weights_read", {}))
        try:
            self.load_own_state(state, report)
            self.skipped.copy_(torch.as_tensor(state.get("skipped_updates", 0)))
            self._seconds_before = float(state["seconds"])
        except KeyError as error:
            raise ConfigError(
                f"checkpoint: the key {error} is missing; use a checkpoint of this kind and version"
            ) from error

    def check_finite(
        self,
        until: str,
        advice: str,
        state: Callable[[], Mapping[str, Any]],
        run: RunFolder | None,
        say: Callable[[str], None],
    ) -> None:
        """Report the number of updates that were not finite; stop the training if too many.

        When the training stops, `state()` is saved as `not_finite.pt` in the run folder. Raises
        NumericalError if the number exceeds `learning.max_skipped_updates`.
        """
        skipped, allowed = int(self.skipped), self.config.learning.max_skipped_updates
        text = (
            f"{skipped} updates up to {until} were skipped, because their loss or gradient was not "
            f"finite; learning.max_skipped_updates allows {allowed}"
        )
        if skipped <= allowed:
            say(f"warning: {text}")
            return
        if run is not None:
            dump = run.path / "not_finite.pt"
            text += f"; the state is in {dump}"
            try:
                save_checkpoint(dump, state())
            except OSError as error:
                say(f"warning: {dump} could not be written: {error.strerror or error}")
        raise NumericalError(f"{text}; {advice}")
