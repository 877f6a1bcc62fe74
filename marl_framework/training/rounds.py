"""Trainings in rounds of flying and learning, from start to end: new, resumed or interrupted."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from marl_framework.command_line import INTERRUPTED
from marl_framework.config.model import Config
from marl_framework.device import describe_device, resolve_device
from marl_framework.mission.seeding import MAX_RANK, split_seed
from marl_framework.runs.checkpoint_store import BEST, LAST, CheckpointStore
from marl_framework.runs.files import link_file
from marl_framework.runs.folder import RunFolder
from marl_framework.runs.log import RunLog
from marl_framework.runs.process import this_process
from marl_framework.runs.start import start_run
from marl_framework.training.ranks import Ranks
from marl_framework.training.resume import Resumption, find_run, go_on
from marl_framework.training.signals import interruptible
from marl_framework.training.summary import weights_checksum

_LAST_RATE = 0.01  # share of the learning rate that is left in the last update


class RoundTrainer(ABC):
    """Learns in rounds.

    Args:
        config: what to train.
        device: where everything lives.
        total: rounds to make.

    Attributes:
        name: before the slash in TensorBoard's tags.
        modules: all networks by name.
        rounds: made so far.
        interrupted: whether the training is to end after the current round.
    """

    name: str
    modules: Mapping[str, nn.Module]

    def __init__(self, config: Config, device: torch.device, total: int) -> None:
        self.config = config
        self.device = device
        seed = split_seed(config.environment.seed, "training", MAX_RANK - 1)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._total = total
        self.rounds = 0
        self.interrupted = False

    def interrupt(self) -> None:
        """Ask for the end of the training after the current round; usable in signal handlers."""
        self.interrupted = True

    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        return self.rounds >= self._total

    @abstractmethod
    def round(self) -> dict[str, float]:
        """Make the next round; return what to log."""

    @abstractmethod
    def describe(self, found: Mapping[str, float]) -> str:
        """Return the line of the log for what a round found."""

    def finish(self, run: RunFolder) -> dict[str, float]:
        """Look at what was learned, once all rounds are made; return more results."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how the training goes on."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""


def falling_rate(first: float, done: float) -> float:
    """Return the learning rate once the share `done` of all updates is made: a line down."""
    return first * (1 - (1 - _LAST_RATE) * done)


def train_in_rounds(
    make: Callable[[Config, torch.device], RoundTrainer],
    config: Config,
    name: str | None,
    *,
    check: bool,
    resume: bool,
    log: RunLog,
) -> int:
    """Train under a run name; return the exit code: 0 done, 130 interrupted.

    Args:
        make: returns the trainer.
        config: what to train.
        name: folder below `logging.directory`; None for one from title and time.
        check: only see whether the training could start.
        resume: continue the run of this name; start it where there is none.
        log: is attached to the run folder.

    Raises:
        ConfigError: the training cannot start.
        OSError: its state could not be saved.
    """
    device = resolve_device(config.compute.device)
    trainer = make(config, device)
    if check:
        print("the configuration is valid")
        return 0
    found = None
    if resume and name is not None:
        found = find_run(config.logging.directory, name, config, report=_warn)
    if found is not None and found.finished and found.run is not None:
        print(f"finished already: {found.run.summary}")
        found.run.release()
        return 0
    run = _claim(found, config, device, name)
    try:
        log.attach(run.path)
        if found is not None and found.payload is not None:
            trainer.load_state_dict(found.payload)
        print(f"{describe_device(device)}\nrun folder: {run.path}", flush=True)
        with interruptible(trainer, Ranks()):
            return _train(trainer, run)
    except BaseException:
        if found is None and trainer.rounds == 0:
            run.discard()  # nothing was learned yet; the name stays free
        raise
    finally:
        run.release()


def _claim(
    found: Resumption | None, config: Config, device: torch.device, name: str | None
) -> RunFolder:
    if found is None or found.run is None:
        return start_run(config, device, name)
    go_on(found, config, device)
    return found.run


def _train(trainer: RoundTrainer, run: RunFolder) -> int:
    """Train; write logs, checkpoints and the summary; return the exit code."""
    start = time.perf_counter()
    run.write_status("training", process=this_process())
    found: dict[str, float] = {}
    store = CheckpointStore(run.checkpoints, trainer.config.logging.checkpoints_kept, _warn)
    with closing(SummaryWriter(str(run.tensorboard))) as writer:
        while not (trainer.is_over() or trainer.interrupted):
            found = trainer.round()
            for name, value in found.items():
                writer.add_scalar(f"{trainer.name}/{name}", value, trainer.rounds)
            print(trainer.describe(found), flush=True)
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
    seconds = time.perf_counter() - start
    run.write_summary(results, {"seconds": seconds}, {"device": describe_device(trainer.device)})
    if not trainer.is_over():
        run.write_status("interrupted")
        print(f"interrupted; its state is in {run.path}; continue with --resume", file=sys.stderr)
        return INTERRUPTED
    link_file(run.checkpoints / LAST, run.checkpoints / BEST)
    run.write_status("finished")
    print(f"done: {run.summary}")
    return 0


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
