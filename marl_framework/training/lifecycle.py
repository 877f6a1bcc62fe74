"""A run of any kind of training: new or resumed, then finished, interrupted or failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from marl_framework.command_line import FAILED, INTERRUPTED, warn
from marl_framework.config.errors import found_at
from marl_framework.config.model import Config
from marl_framework.device import describe_device
from marl_framework.planners.team import load_team
from marl_framework.runs.folder import INITIAL_WEIGHTS, JOB, RunFolder, job_of, start_run
from marl_framework.runs.log import RunLog
from marl_framework.runs.process import this_process
from marl_framework.training.base import NumericalError, RunTrainer
from marl_framework.training.distributed import is_lost_rank, joined
from marl_framework.training.memory import is_out_of_memory
from marl_framework.training.options import Start
from marl_framework.training.ranks import LeaderError, Ranks
from marl_framework.training.resume import Resumption, find_run
from marl_framework.training.signals import interruptible
from marl_framework.training.trainer import Trainer

_LOST = "another rank ended early; torchrun's report gives the reason"
_LOST_LINE = f"error: {_LOST}; earlier checkpoints are intact, continue with --resume"


@dataclass(frozen=True)
class Job:
    """A training and its place."""

    config: Config
    device: torch.device
    make: Callable[[int], RunTrainer]
    """Returns the trainer; takes the number of steps of the checkpoint that is loaded next."""
    mark: str
    """See `RunTrainer`."""
    memory_advice: Callable[[], str]
    """Returns the advice after "out of memory"."""
    ranks: Ranks = Ranks()  # noqa: RUF009 (frozen)


def train(job: Job, start: Start, log: RunLog) -> int:
    """Train under a run name; attach the log to the run folder.

    Returns:
        The exit code: 0 done, 1 failed, 130 interrupted.

    Raises:
        ConfigError: the training cannot start.
        LeaderError: rank 0 could not start it.
    """
    ranks = job.ranks
    try:
        with joined(job.config.compute.distributed_backend, job.device, ranks):
            if not start.check:
                return _open_and_train(job, start, log)
            _initial_weights(job.make(0), start.init_from)
            _say(ranks, "the configuration is valid")
            return 0
    except Exception as error:
        if ranks.count > 1 and is_lost_rank(error):
            if ranks.leads:
                warn(_LOST_LINE)
            ranks.wait_for_leader()
            return FAILED
        if not is_out_of_memory(error):
            raise
        warn(f"error: out of memory on {job.device}: {job.memory_advice()}")
        return FAILED


def _open_and_train(job: Job, start: Start, log: RunLog) -> int:
    """Start or resume a run and train; return the exit code."""
    config, device, ranks, name = job.config, job.device, job.ranks, start.run_name

    def find() -> Resumption | None:
        folder = Path(config.logging.directory) / str(name)
        if name is None or not (start.resume or ranks.resume(job_of(folder))):
            return None
        return find_run(name, config, job.mark, start.allow_changed, warn)

    found = ranks.on_leader(find, lambda f: f and replace(f, run=None))
    run: RunFolder | None = found and found.run
    try:
        if found is not None and found.finished:
            _say(ranks, f"finished already: {run and run.summary_file}")
            return 0
        payload, initial = found and found.payload, None
        trainer = job.make(found.step if found else 0)
        if payload is not None:
            trainer.load_state_dict(payload, warn if ranks.leads else lambda _: None)
        else:
            initial = _initial_weights(trainer, start.init_from or (found and found.initial))
        several = f", {ranks.count} ranks" if ranks.count > 1 else ""
        for line in (describe_device(device) + several, *trainer.notes()):
            _say(ranks, line)

        def claim() -> RunFolder:
            if found is None or found.run is None:
                run = start_run(config, device, name, archive_earlier=start.archive_earlier)
            else:
                run = found.run
                run.resume(config, device, found.step, found.changed)
            log.attach(run.path)
            known: dict[str, Any] = {JOB: ranks.job} if ranks.may_restart else {}
            if initial is not None:
                known[INITIAL_WEIGHTS] = initial
            run.note(**known)
            run.write_status("training", process=this_process())
            return run

        run = ranks.on_leader(claim)
        with interruptible(trainer.interrupt, ranks):  # until all is written
            if run is None:
                return _follow(trainer)
            print(f"run folder: {run.path}", flush=True)
            return _lead(trainer, run, start.profile, fresh=found is None)
    finally:
        if run is not None:
            run.release()


def _initial_weights(trainer: RunTrainer, init_from: str | None) -> dict[str, Any] | None:
    """Start with the weights of a trained team, if one is named; return a record of it."""
    if init_from is None:
        return None
    assert isinstance(trainer, Trainer)
    with found_at("--init-from"):
        checkpoint = load_team(init_from)
    record, line = trainer.start_from(checkpoint)
    _say(trainer.ranks, line)
    return record


def _follow(trainer: RunTrainer) -> int:
    """Train on a rank that does not lead; the leader reports how the run ends."""
    try:
        trainer.train(None)
    except NumericalError:
        trainer.ranks.wait_for_leader()
        return FAILED
    return 0 if trainer.is_over() else INTERRUPTED


def _lead(trainer: RunTrainer, run: RunFolder, profile: int, fresh: bool) -> int:
    """Train; report how the run ends on the screen, in its folder and as exit code."""
    code, state, text, known = INTERRUPTED, "interrupted", "interrupted at once", {}
    try:
        summary = trainer.train(run, profile)
    except KeyboardInterrupt:
        pass
    except NumericalError as error:
        code, state, text, fresh = FAILED, "failed", f"error: {error}", False  # keep the dump
    except BaseException as error:
        lost = trainer.ranks.count > 1 and is_lost_rank(error)
        if lost:
            warn(_LOST_LINE)
        if fresh and trainer.steps == 0:
            run.discard()  # the name stays free
        else:
            reason = _LOST if lost else f"{type(error).__name__}: {error}"[:1000]
            run.write_status("failed", error=reason)
        if lost:
            raise LeaderError(FAILED) from error
        raise
    else:
        run.write_summary(**summary)
        results = summary["results"]
        known = {name: results[name] for name in ("episodes", "last", "best") if name in results}
        known["training_step"], text = trainer.steps, "interrupted"
        if results["finished"]:
            run.write_status("finished", **known)  # also where a signal came in the last step
            print(f"done: {run.summary_file}")
            return 0
    if fresh and trainer.steps == 0:
        run.discard()
        warn(f"{text}; nothing was learned yet")
    else:
        run.write_status(state, **known)
        warn(f"{text}; its state is in {run.path}; continue with --resume")
    return code


def _say(ranks: Ranks, text: str) -> None:
    if ranks.leads:
        print(text, flush=True)
