"""Several training runs in one process, whose training steps are made at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TextIO, cast

import torch

from marl_framework.algorithms.graphs import is_recorded
from marl_framework.algorithms.stacked import stacks
from marl_framework.command_line import FAILED, INTERRUPTED, warn
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.runs.log import RunLog
from marl_framework.stage_timer import StageTimer
from marl_framework.training.distributed import joined
from marl_framework.training.jobs import Named, tell
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
    """Train runs that differ in seed and learning rates alone, each as it would be alone.

    One that is behind, because it goes on from an earlier checkpoint, catches up first. A run that
    fails does not keep the others from being trained.

    Args:
        runs: configuration by run name; see `check_together`.
        title: returns a line about a run, which is printed before it.
        device: that trains them.
        start: how.

    Returns:
        The exit code of each run by its name, see `jobs.worst`.
    """
    (config, *_) = runs.values()
    members = [
        _Member(name, title(name, config), partial(opened, config, device, start, Ranks()))
        for name, config in runs.items()
    ]
    with joined(config, device, Ranks()), interruptible(_All(members), Ranks()) as urged:
        try:
            _make_steps(members, urged)
        except BaseException as error:  # each says how it ended
            for member in members:
                member.end(error)
    return {member.name: member.code or 0 for member in members}


def check_together(config: Config, device: torch.device, runs: int) -> None:
    """Check that so many runs of a configuration can be trained together.

    Raises:
        ConfigError: the device has too little memory, or something that is configured prevents it.
    """
    if is_recorded(config.compute, device):
        raise ConfigError(
            "compute.cuda_graphs: does not work with --together; set compute.cuda_graphs=false"
        )
    stacks(config, device)
    check_memory(config, device, together=runs)


def _make_steps(members: Sequence[_Member], urged: Sequence[int]) -> None:
    """Make training steps until all runs have ended, or a second signal has come."""

    def go_on(member: _Member, step: Step | None = None) -> None:
        member.go_on(step)
        if len(urged) > 1:  # this one has ended at once
            raise KeyboardInterrupt

    for member in members:
        go_on(member)
    make: Callable[[Sequence[StageTimer]], list[TrainingStep]] | None = None
    earlier: list[_Member] = []
    while ready := _next_ones([member for member in members if member.code is None]):
        try:
            if make is None or ready != earlier:
                make = None
                gc.collect()  # the memory of these serves the next ones
                make, earlier = _steps_of([member.trainer for member in ready]), ready
            made = make([member.timer for member in ready])
        except Exception as error:
            for member in ready:
                member.end(error)
            continue
        for member, step in zip(ready, made, strict=True):
            go_on(member, partial(_return, step))


def _steps_of(trainers: Sequence[Trainer]) -> Callable[[Sequence[StageTimer]], list[TrainingStep]]:
    """Return what makes training steps of these trainers, with their timers."""
    if len(trainers) == 1:
        return lambda timers: [trainers[0].training_step(timers[0])]
    joint = JointStep(trainers)
    print(f"{len(trainers)} runs at once: {joint.description}", flush=True)
    return joint


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

    def go_on(self, step: Step | None) -> None:
        """Go on with a training step, at first without, until the next is wanted or all is done."""
        training = self._training
        self._advance(lambda: next(training) if step is None else training.send(step))

    def end(self, error: BaseException) -> None:
        """End with an error that kept the next training step from being made, if it goes on."""
        if self.code is None:
            self._advance(lambda: self._training.throw(error))

    def _advance(self, resume: Callable[[], StageTimer]) -> None:
        with self._speaking():
            try:
                self.timer = resume()
            except StopIteration as end:
                self.code = end.value
            except KeyboardInterrupt:
                self.code = INTERRUPTED
            except Exception as error:
                if is_out_of_memory(error):
                    warn("error: out of memory: train fewer runs together; --resume continues")
                    self.code = FAILED
                else:
                    self.code = tell(error)
        if self.code is not None:
            self.__dict__.pop("trainer", None)  # the others may need its memory

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
