"""Trainings in rounds of flying and learning, from start to end: new, resumed or interrupted."""

from __future__ import annotations

import argparse
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.optimisers import apply_gradients, set_rate
from marl_framework.command_line import FAILED, INTERRUPTED, warn
from marl_framework.config.learning import DistillationConfig, PredictionConfig
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import describe_device, resolve_device
from marl_framework.mission.seeding import MAX_RANK, split_seed
from marl_framework.runs.checkpoint import check_weights
from marl_framework.runs.checkpoint_store import BEST, LAST, CheckpointStore
from marl_framework.runs.files import link_file, read_json
from marl_framework.runs.folder import RunFolder
from marl_framework.runs.log import RunLog
from marl_framework.runs.process import this_process
from marl_framework.runs.start import leave_run, start_run
from marl_framework.training.logging import make_logger
from marl_framework.training.memory import is_out_of_memory
from marl_framework.training.not_finite import NumericalError, tell_or_stop
from marl_framework.training.ranks import Ranks
from marl_framework.training.resume import (
    Resumption,
    check_fit,
    complete_checkpoint,
    find_run,
    go_on,
)
from marl_framework.training.signals import interruptible
from marl_framework.training.streams import (
    renew_stream,
    restore_stream,
    stream_state,
    tell_of_other_streams,
)
from marl_framework.training.summary import weights_checksum
from marl_framework.training.writers import check_writers

_LAST_RATE = 0.01  # share of the learning rate that is left in the last update
_KEPT = 1  # checkpoints of a run: each may hold all that was flown


class RoundTrainer(ABC):
    """Learns in rounds.

    Args:
        config: what to train.
        device: where everything lives.

    Attributes:
        name: of its section in the configuration, and before the slash in tags of metrics.
        mark: key that only its checkpoints hold.
        modules: all networks by name.
        rounds: made so far.
        interrupted: whether the training is to end after the current round.

    Raises:
        ConfigError: a writer of `logging.writers` is not installed.
    """

    name: str
    mark: str
    modules: Mapping[str, nn.Module]
    _weights_read: Mapping[str, str]
    _optimizer: torch.optim.Optimizer
    _scaler: torch.amp.GradScaler

    def __init__(self, config: Config, device: torch.device) -> None:
        check_writers(config.logging.writers)
        self.config = config
        self.device = device
        seed = split_seed(config.environment.seed, "training", MAX_RANK - 1)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._section: PredictionConfig | DistillationConfig = getattr(config, self.name)
        self._started = time.perf_counter()
        self._seconds_before = 0.0
        self._skipped = 0
        self.rounds = 0
        self.interrupted = False

    def interrupt(self) -> None:
        """Ask for the end of the training after the current round; usable in signal handlers."""
        self.interrupted = True

    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        return self.rounds >= self._section.rounds

    @abstractmethod
    def round(self) -> dict[str, float]:
        """Make the next round; return what to log."""

    @abstractmethod
    def describe(self, found: Mapping[str, float]) -> str:
        """Return the line of the log for what a round found."""

    def _make_updates(
        self, loss_of: Callable[[int], Tensor], gradient_norm: float
    ) -> dict[str, Tensor]:
        """Make the updates of a round; return the mean `loss`, and `skipped_updates`.

        Args:
            loss_of: returns the loss of the update with this number.
            gradient_norm: that gradients are scaled down to.
        """
        settings = self._section
        updates = settings.rounds * settings.updates
        losses, skipped = [], []
        for update in range(settings.updates):
            done = (self.rounds * settings.updates + update) / updates
            set_rate(self._optimizer, _falling_rate(settings.learning_rate, done))
            loss = loss_of(update)
            self._optimizer.zero_grad(set_to_none=True)
            self._scaler.scale(loss).backward()
            _, bad = apply_gradients(loss.detach(), self._optimizer, self._scaler, gradient_norm)
            self._scaler.update()
            losses.append(loss.detach())
            skipped.append(bad)
        return {"loss": torch.stack(losses).mean(), "skipped_updates": torch.stack(skipped).sum()}

    def check_numbers(self, found: Mapping[str, float], run: RunFolder) -> None:
        """Stop if too many updates were not finite.

        Args:
            found: of the latest round.
            run: that a state which explains it is written to.

        Raises:
            NumericalError: they were more than `learning.max_skipped_updates`.
        """
        if not found.get("skipped_updates"):
            return
        self._skipped += int(found["skipped_updates"])
        tell_or_stop(
            self._skipped,
            self.config.learning.max_skipped_updates,
            f"round {self.rounds}",
            f"lower {self.name}.learning_rate, or use compute.precision=float32",
            self.state_dict,
            run,
            warn,
        )

    def finish(self, run: RunFolder) -> dict[str, float]:
        """Look at what was learned, once all rounds are made; return more results."""
        return {}

    # Saving -------------------------------------------------------------------------------

    @abstractmethod
    def mission_streams(self) -> list[torch.Generator]:
        """Return the generators of all missions."""

    @abstractmethod
    def learned_state(self) -> dict[str, Any]:
        """Return what `state_dict` has beside what all trainers save."""

    @abstractmethod
    def load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Load what `learned_state` returned."""

    def seconds(self) -> float:
        """Return how long this process and earlier ones have trained [s]."""
        return self._seconds_before + time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how the training goes on."""
        return {
            **self.learned_state(),
            "weights_read": self._weights_read,
            "config": config_to_dict(self.config),
            "training_step": self.rounds,
            "skipped_updates": self._skipped,
            "device": self.device.type,
            "generators": [stream_state(generator, self.device) for generator in self._streams()],
            "seconds": self.seconds(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], report: Callable[[str], None] = print
    ) -> None:
        """Go on from what `state_dict` returned.

        Args:
            state: from `load_checkpoint`, on the CPU.
            report: shows a line where the run cannot be repeated exactly.

        Raises:
            ConfigError: it is of another kind of training, does not fit the configuration, or a
                file that the training reads has changed.
        """
        for name, module in self.modules.items():
            check_fit(name, module.state_dict(), state.get(name))
        check_weights(self._weights_read, state.get("weights_read", {}))
        with complete_checkpoint():
            self.load_learned_state(state)
            self.rounds = int(state["training_step"])
            self._skipped = int(state.get("skipped_updates", 0))  # older runs did not count
            self._seconds_before = float(state["seconds"])
            self._load_streams(state, report)

    def _streams(self) -> list[torch.Generator]:
        """Return the generators of all missions, and of what is learned from them."""
        return [*self.mission_streams(), self._generator]

    def _load_streams(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        """Restore all random streams; draw new ones on another kind of device."""
        tell_of_other_streams(state, self.device, Ranks(), report)
        saved = zip(state["generators"], self._streams(), strict=True)
        for number, (stream, generator) in enumerate(saved):
            if state["device"] == self.device.type:
                restore_stream(stream, generator, self.device)
            else:
                renew_stream(generator, self.config.environment.seed, self.rounds, number)


def _falling_rate(first: float, done: float) -> float:
    """Return the learning rate once the share `done` of all updates is made: a line down."""
    return first * (1 - (1 - _LAST_RATE) * done)


def train_in_rounds(
    make: type[RoundTrainer], config: Config, options: argparse.Namespace, log: RunLog
) -> int:
    """Train under a run name; return the exit code: 0 done, 1 failed, 130 interrupted.

    Args:
        make: the trainer.
        config: what to train.
        options: of `rounds_parser`.
        log: is attached to the run folder.

    Raises:
        ConfigError: the training cannot start.
        OSError: its state could not be saved.
    """
    device = resolve_device(config.compute.device)
    try:
        trainer = make(config, device)
        if options.check:
            print("the configuration is valid")
            return 0
        found = None
        if options.resume:
            found = find_run(options.run_name, config, make.mark, None, warn)
        return _start_or_resume(trainer, found, options.run_name, log)
    except NumericalError as error:
        warn(f"error: {error}")
        return FAILED
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        warn(
            f"error: out of memory on {device}: lower {make.name}.missions or "
            f"{make.name}.batch_size in a new run"
        )
        return FAILED


def _start_or_resume(
    trainer: RoundTrainer, found: Resumption | None, name: str | None, log: RunLog
) -> int:
    run = None if found is None else found.run
    try:
        if found is not None and run is not None and found.finished:
            print(f"finished already: {run.summary_file}")
            return 0
        if found is not None and found.payload is not None:
            trainer.load_state_dict(found.payload, warn)
        if found is None or run is None:
            run = start_run(trainer.config, trainer.device, name)
        else:
            go_on(found, trainer.config, trainer.device)
        try:
            log.attach(run.path)
            print(f"{describe_device(trainer.device)}\nrun folder: {run.path}", flush=True)
            with interruptible(trainer, Ranks()):
                return _train(trainer, run, fresh=found is None)
        except BaseException as error:
            empty = found is None and trainer.rounds == 0
            if isinstance(error, KeyboardInterrupt):
                leave_run(run, "interrupted", "interrupted at once", empty=empty)
                return INTERRUPTED
            if empty:
                run.discard()  # nothing was learned yet; the name stays free
            else:
                run.write_status("failed", error=f"{type(error).__name__}: {error}"[:1000])
            raise
    finally:
        if run is not None:
            run.release()


def _train(trainer: RoundTrainer, run: RunFolder, fresh: bool) -> int:
    """Train; write logs, checkpoints and the summary; return the exit code."""
    found: dict[str, float] = read_json(run.status_file, "last")  # of a run that goes on
    run.write_status("training", process=this_process())
    store = CheckpointStore(run.checkpoints, _KEPT, warn)

    def tag(name: str) -> str:
        return f"{trainer.name}/{name}"

    with make_logger(trainer.config, run, trainer.rounds, warn, tag) as logger:
        while not (trainer.is_over() or trainer.interrupted):
            found = trainer.round()
            logger.write(trainer.rounds, found)
            print(trainer.describe(found), flush=True)
            trainer.check_numbers(found, run)
            if not store.save(trainer.rounds, trainer.state_dict()):
                raise OSError(f"the state after round {trainer.rounds} could not be saved")
            run.write_status("training", training_step=trainer.rounds, last=found)
    if trainer.is_over():
        found = found | trainer.finish(run)
    results = {
        "finished": trainer.is_over(),
        "training_steps": trainer.rounds,
        "last": found,
        "weights_sha256": weights_checksum(trainer.modules),
    }
    timing, machine = {"seconds": trainer.seconds()}, {"device": describe_device(trainer.device)}
    run.write_summary(results, timing, machine)
    if not trainer.is_over():
        empty = fresh and trainer.rounds == 0
        leave_run(run, "interrupted", "interrupted", empty=empty)
        return INTERRUPTED
    link_file(run.checkpoints / LAST, run.checkpoints / BEST)
    run.write_status("finished")
    print(f"done: {run.summary_file}")
    return 0
