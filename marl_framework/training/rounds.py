"""Base class of trainers that work in rounds: fly missions, then learn from them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.optimisers import apply_gradients, set_rate
from marl_framework.command_line import warn
from marl_framework.config.learning import DistillationConfig, PredictionConfig
from marl_framework.config.model import Config
from marl_framework.device import describe_device, resolve_device
from marl_framework.mission.seeding import MAX_RANK, split_seed
from marl_framework.runs.checkpoint_store import BEST, LAST, CheckpointStore
from marl_framework.runs.files import link_file
from marl_framework.runs.folder import RunFolder
from marl_framework.runs.log import RunLog
from marl_framework.training.base import RunTrainer
from marl_framework.training.lifecycle import Job, train
from marl_framework.training.logging import make_logger
from marl_framework.training.options import Start
from marl_framework.training.ranks import Ranks
from marl_framework.training.streams import (
    renew_stream,
    report_other_streams,
    restore_stream,
    stream_state,
)
from marl_framework.training.summary import weights_checksum

_LAST_RATE = 0.01
"""Learning rate of the last update, relative to the first."""


class RoundTrainer(RunTrainer):
    """Trains in rounds, in one process.

    Attributes:
        name: name of the configuration section, and prefix of the metrics' tags.
        rounds: number of rounds made so far.
        streams: generators of all missions and of the updates; set by subclasses.
    """

    name: str
    streams: Sequence[torch.Generator]
    _optimizer: torch.optim.Optimizer
    _scaler: torch.amp.GradScaler

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        seed = split_seed(config.environment.seed, "training", MAX_RANK - 1)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._section: PredictionConfig | DistillationConfig = getattr(config, self.name)
        self.rounds = 0
        self._last: dict[str, float] = {}

    @property
    def steps(self) -> int:
        """Number of rounds made so far."""
        return self.rounds

    def is_over(self) -> bool:
        """Return whether all rounds are done."""
        return self.rounds >= self._section.rounds

    @abstractmethod
    def round(self) -> dict[str, float]:
        """Run the next round; return the metrics."""

    @abstractmethod
    def describe(self, results: Mapping[str, float]) -> str:
        """Format the metrics of a round as a line to print."""

    def finish(self, run: RunFolder) -> dict[str, float]:
        """Evaluate the trained networks after the last round; return further results."""
        return {}

    def train(self, run: RunFolder | None, profile: int = 0) -> dict[str, Any]:
        """Run all remaining rounds, or stop after the round in which `interrupt` is called."""
        assert run is not None  # rank 0 is the only process
        store = CheckpointStore(run.checkpoints, 1, warn)  # large: contains all flown missions
        tag = f"{self.name}/{{}}".format
        with make_logger(self.config, run, self.rounds, warn, tag) as logger:
            while not (self.is_over() or self.interrupted):
                self._last = metrics = self.round()
                logger.write(self.rounds, metrics)
                print(self.describe(metrics), flush=True)
                if metrics.get("skipped_updates"):
                    self.skipped += metrics["skipped_updates"]
                    advice = f"lower {self.name}.learning_rate, or use compute.precision=float32"
                    custom = self.config.experiment.reward.function
                    if custom is not None and not math.isfinite(metrics.get("critic_loss", 0.0)):
                        advice = f"experiment.reward.function: {custom} may return such numbers"
                    self.check_finite(f"round {self.rounds}", advice, self.state_dict, run, warn)
                if not store.save(self.rounds, self.state_dict()):
                    raise OSError(f"the state after round {self.rounds} could not be saved")
                run.write_status("training", training_step=self.rounds, last=metrics)
        metrics = self._last
        if self.is_over():
            metrics = metrics | self.finish(run)
            link_file(run.checkpoints / LAST, run.checkpoints / BEST)
        results = {"finished": self.is_over(), "training_steps": self.rounds, "last": metrics}
        results["weights_sha256"] = weights_checksum(self.modules)
        machine = {"device": describe_device(self.device)}
        return {"results": results, "timing": {"seconds": self.seconds()}, "machine": machine}

    def _make_updates(
        self, loss_of: Callable[[int], Tensor], gradient_norm: float
    ) -> dict[str, Tensor]:
        """Make the updates of a round; return the mean `loss` and number of `skipped_updates`.

        `loss_of` computes the loss of an update, given its index in the round. Gradients with a
        norm above `gradient_norm` are clipped.
        """
        settings = self._section
        updates = settings.rounds * settings.updates
        losses, skipped = [], []
        for update in range(settings.updates):
            done = (self.rounds * settings.updates + update) / updates
            set_rate(self._optimizer, settings.learning_rate * (1 - (1 - _LAST_RATE) * done))
            loss = loss_of(update)
            self._optimizer.zero_grad(set_to_none=True)
            self._scaler.scale(loss).backward()
            _, bad = apply_gradients(loss.detach(), self._optimizer, self._scaler, gradient_norm)
            self._scaler.update()
            losses.append(loss.detach())
            skipped.append(bad)
        return {"loss": torch.stack(losses).mean(), "skipped_updates": torch.stack(skipped).sum()}

    # Saving -------------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """Return all random streams; subclasses add what they learned and stored."""
        streams = [stream_state(each, self.device) for each in self.streams]
        return {"generators": streams, "last": self._last}

    def load_own_state(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        """Load what `own_state` returned; seed new streams on another kind of device."""
        self.rounds, self._last = int(state["training_step"]), dict(state.get("last", {}))
        report_other_streams(state, self.device, Ranks(), report)
        saved = zip(state["generators"], self.streams, strict=True)
        for number, (stream, generator) in enumerate(saved):
            if state["device"] == self.device.type:
                restore_stream(stream, generator, self.device)
            else:
                renew_stream(generator, self.config.environment.seed, self.rounds, number)


def train_in_rounds(make: type[RoundTrainer], config: Config, start: Start, log: RunLog) -> int:
    """Train with the trainer class `make`; return the exit code, see `lifecycle.train`."""
    device = resolve_device(config.compute.device)
    advice = f"lower {make.name}.missions or {make.name}.batch_size in a new run"
    job = Job(config, device, lambda _: make(config, device), make.mark, lambda: advice)
    return train(job, start, log)
