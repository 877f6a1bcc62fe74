"""The base of trainers that alternate between flying missions and learning: rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
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
from marl_framework.runs.files import link_file, read_json
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
"""Share of the learning rate that is left in the last update."""


class RoundTrainer(RunTrainer):
    """Learns in rounds on one process.

    Attributes:
        name: name of its section in the configuration, and prefix of its metrics' tags.
        rounds: number of rounds made so far.
    """

    name: str
    _optimizer: torch.optim.Optimizer
    _scaler: torch.amp.GradScaler

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        seed = split_seed(config.environment.seed, "training", MAX_RANK - 1)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._section: PredictionConfig | DistillationConfig = getattr(config, self.name)
        self.rounds = 0

    @property
    def steps(self) -> int:
        """Number of rounds made so far."""
        return self.rounds

    def is_over(self) -> bool:
        """Return whether all rounds are made."""
        return self.rounds >= self._section.rounds

    @abstractmethod
    def round(self) -> dict[str, float]:
        """Make the next round; return its metrics."""

    @abstractmethod
    def describe(self, found: Mapping[str, float]) -> str:
        """Return the line of the log for the metrics of a round."""

    def finish(self, run: RunFolder) -> dict[str, float]:
        """Examine what was learned after the last round; return more results."""
        return {}

    def train(self, run: RunFolder | None, profile: int = 0) -> dict[str, Any]:
        """Make all rounds left, or stop after the round in which `interrupt` is called."""
        assert run is not None  # there is one process
        found: dict[str, float] = read_json(run.status_file, "last")  # of a resumed run
        store = CheckpointStore(run.checkpoints, 1, warn)  # each may hold all flown missions
        tag = f"{self.name}/{{}}".format
        with make_logger(self.config, run, self.rounds, warn, tag) as logger:
            while not (self.is_over() or self.interrupted):
                found = self.round()
                logger.write(self.rounds, found)
                print(self.describe(found), flush=True)
                if found.get("skipped_updates"):
                    self.skipped += found["skipped_updates"]
                    advice = f"lower {self.name}.learning_rate, or use compute.precision=float32"
                    self.check_finite(f"round {self.rounds}", advice, self.state_dict, run, warn)
                if not store.save(self.rounds, self.state_dict()):
                    raise OSError(f"the state after round {self.rounds} could not be saved")
                run.write_status("training", training_step=self.rounds, last=found)
        if self.is_over():
            found = found | self.finish(run)
            link_file(run.checkpoints / LAST, run.checkpoints / BEST)
        results = {"finished": self.is_over(), "training_steps": self.rounds, "last": found}
        results["weights_sha256"] = weights_checksum(self.modules)
        machine = {"device": describe_device(self.device)}
        return {"results": results, "timing": {"seconds": self.seconds()}, "machine": machine}

    def _make_updates(
        self, loss_of: Callable[[int], Tensor], gradient_norm: float
    ) -> dict[str, Tensor]:
        """Make the updates of a round; return the mean `loss` and number of `skipped_updates`.

        Args:
            loss_of: returns the loss of the update of this number.
            gradient_norm: norm that gradients are clipped to.
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

    @abstractmethod
    def mission_streams(self) -> list[torch.Generator]:
        """Return the generators of all missions."""

    @abstractmethod
    def learned_state(self) -> dict[str, Any]:
        """Return networks, optimisers and kept missions."""

    @abstractmethod
    def load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Load what `learned_state` returned."""

    def streams(self) -> list[torch.Generator]:
        """Return the generators of all missions and of what is learned from them."""
        return [*self.mission_streams(), self._generator]

    def own_state(self) -> dict[str, Any]:
        """Return what is learned and all random streams."""
        streams = [stream_state(generator, self.device) for generator in self.streams()]
        return {**self.learned_state(), "generators": streams}

    def load_own_state(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        """Load what `own_state` returned; draw new streams on another kind of device."""
        self.load_learned_state(state)
        self.rounds = int(state["training_step"])
        report_other_streams(state, self.device, Ranks(), report)
        saved = zip(state["generators"], self.streams(), strict=True)
        for number, (stream, generator) in enumerate(saved):
            if state["device"] == self.device.type:
                restore_stream(stream, generator, self.device)
            else:
                renew_stream(generator, self.config.environment.seed, self.rounds, number)


def train_in_rounds(make: type[RoundTrainer], config: Config, start: Start, log: RunLog) -> int:
    """Train in rounds by a class of trainer; return the exit code, see `lifecycle.train`."""
    device = resolve_device(config.compute.device)
    advice = f"lower {make.name}.missions or {make.name}.batch_size in a new run"
    job = Job(config, device, lambda _: make(config, device), make.mark, lambda: advice)
    return train(job, start, log)
