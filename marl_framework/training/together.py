"""Several training runs in one process, whose training steps are made at once."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NoReturn, TextIO, cast

import torch

from marl_framework.algorithms.graphs import is_recorded
from marl_framework.algorithms.stacked import stacks
from marl_framework.command_line import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    describe_os_error,
    warn,
)
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.runs.log import RunLog
from marl_framework.stage_timer import StageTimer
from marl_framework.training.jobs import Named
from marl_framework.training.joint_step import JointStep
from marl_framework.training.launch import OpenRun, Start, opened
from marl_framework.training.memory import check_memory, is_out_of_memory
from marl_framework.training.ranks import Ranks
from marl_framework.training.signals import interruptible
from marl_framework.training.trainer import Trainer, Training, TrainingStep

Step = Callable[[], TrainingStep]


def train_together(
    runs: Mapping[str, Config],
    title: Callable[[str, Config], str],
    device: torch.device,
    start: Start,
) -> dict[str, int]:
    """Train runs that differ in seed alone, each as it would be trained alone.

    One that is behind, because it goes on from an earlier checkpoint, catches up first. A run that
    fails does not keep the others from being trained.

    Args:
        runs: configuration by run name.
        title: returns a line about a run, which is printed before it.
        device: that trains them.
        start: how.

    Returns:
        The exit code of each run by its name, see `jobs.worst`.

    Raises:
        ConfigError: they cannot be trained together.
    """
    (config, *_) = runs.values()
    if is_recorded(config.compute, device):
        raise ConfigError(
            "compute.cuda_graphs: does not work with --together; set compute.cuda_graphs=false"
        )
    stacks(config, device)
    check_memory(config, device, together=len(runs))
    members = [
        _Member(name, title(name, config), partial(opened, config, device, start, Ranks()))
        for name, config in runs.items()
    ]
    with interruptible(_All(members), Ranks()):
        for member in members:
            member.go_on()
        joint: tuple[list[_Member], JointStep] | None = None
        while ready := _next_ones([member for member in members if member.code is None]):
            if len(ready) == 1:
                ready[0].go_on(partial(ready[0].trainer.training_step, ready[0].timer))
                continue
            try:
                if joint is None or joint[0] != ready:
                    joint = ready, JointStep([member.trainer for member in ready])
                    print(f"{len(ready)} runs at once: {joint[1].description}", flush=True)
                made = joint[1]([member.timer for member in ready])
                steps: list[Step] = [partial(_return, step) for step in made]
            except BaseException as error:  # each run says how it ended
                steps = [partial(_raise, error)] * len(ready)
            for member, step in zip(ready, steps, strict=True):
                member.go_on(step)
    return {member.name: member.code or 0 for member in members}


class _Member:
    """A run among others: what it prints begins with its name, and goes to its own log.

    Args:
        name: of the run.
        title: what is printed first.
        open_run: opens it, see `launch.opened`.

    Attributes:
        code: exit code; None until the run has ended.
        trainer: once it waits for the first training step.
        timer: what it waits with.
    """

    def __init__(
        self, name: str, title: str, open_run: Callable[..., AbstractContextManager[OpenRun | None]]
    ) -> None:
        self.name = name
        self.code: int | None = None
        self.trainer: Trainer
        self.timer: StageTimer
        self._interrupted = False
        self._title, self._open = title, open_run
        self._log = RunLog()
        self._streams = [Named(stream, name) for stream in (sys.stdout, sys.stderr)]
        self._training = self._train()

    def _train(self) -> Training[int]:
        if self._interrupted:
            return INTERRUPTED
        print(self._title, flush=True)
        with self._open(run_name=self.name, log=self._log) as run:
            if run is None:
                return 0
            self.trainer = run.trainer
            if self._interrupted:
                self.trainer.interrupt()
            code: int = yield from run.training(profile=0)
            return code

    def interrupt(self) -> None:
        """End after the current training step."""
        self._interrupted = True
        if hasattr(self, "trainer"):
            self.trainer.interrupt()

    def go_on(self, step: Step | None = None) -> None:
        """Go on with a training step, at first without, until the next is wanted or all is done."""
        with self._speaking():
            try:
                self.timer = next(self._training) if step is None else self._training.send(step)
            except StopIteration as end:
                self.code = end.value
            except ConfigError as error:
                warn(f"error: {error}")
                self.code = BAD_INPUT
            except KeyboardInterrupt:
                self.code = INTERRUPTED
            except OSError as error:
                warn(describe_os_error(error))
                self.code = FAILED
            except Exception as error:
                self.code = FAILED
                if is_out_of_memory(error):
                    warn("error: out of memory: train fewer runs together; --resume continues")
                else:
                    traceback.print_exc()

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in self._streams)
        try:
            with self._log.copying():
                yield
        finally:
            sys.stdout, sys.stderr = before
            if self.code is not None:
                for stream in self._streams:
                    stream.end()
                self._log.detach()


class _All:
    """Passes on that the training is to end."""

    def __init__(self, members: Sequence[_Member]) -> None:
        self._members = members

    def interrupt(self) -> None:
        """See `signals.Interruptible`."""
        for member in self._members:
            member.interrupt()


def _next_ones(waiting: Sequence[_Member]) -> list[_Member]:
    """Return those whose training step is next: the hindmost, and who is as far."""
    plans = [member.trainer.plan() for member in waiting]
    return [m for m, plan in zip(waiting, plans, strict=True) if plan == min(plans)]


def _return(step: TrainingStep) -> TrainingStep:
    return step


def _raise(error: BaseException) -> NoReturn:
    raise error
