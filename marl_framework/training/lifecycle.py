"""Lifecycle of a training run: start or resume, train, and report how the run ends."""

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

_LOST = "another rank ended early; torchrun reports the reason"
_LOST_LINE = f"error: {_LOST}; earlier checkpoints are intact, continue with --resume"


@dataclass(frozen=True)
class Job:
    """A training with its device and ranks."""

    config: Config
    device: torch.device
    make: Callable[[int], RunTrainer]
    """Function that builds the trainer, given the number of steps made before."""
    mark: str
    """Key that only checkpoints of this kind of training contain; see `RunTrainer`."""
    memory_advice: Callable[[], str]
    """Function that returns the advice after "out of memory"."""
    ranks: Ranks = Ranks()  # noqa: RUF009 (frozen)


def train(job: Job, start: Start, log: RunLog) -> int:
    """Train under a run name; attach the log to the run folder.

    Returns the exit code: 0 done, 1 failed, 130 interrupted. Raises ConfigError if the training
    cannot start, and LeaderError if rank 0 could not start it.
    """
    ranks = job.ranks
    try:
        with joined(job.config.compute.distributed_backend, job.device, ranks):
            if not start.check:
                return _open_and_train(job, start, log)
            _load_initial_weights(job.make(0), start.init_from)
            _print_on_leader(ranks, "the configuration is valid")
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

    def find() -> Resumption:
        folder = Path(config.logging.directory) / str(name)
        if name is None or not (start.resume or ranks.resume(job_of(folder))):
            return Resumption()
        return find_run(name, config, job.mark, start.allow_changed, warn)

    found: Resumption = ranks.on_leader(find, lambda resumption: replace(resumption, run=None))
    run, initial = found.run, None
    try:
        if found.finished:
            _print_on_leader(ranks, f"finished already: {run and run.summary_file}")
            return 0
        trainer = job.make(found.step)
        if found.payload is not None:
            trainer.load_state_dict(found.payload, warn if ranks.leads else lambda _: None)
        else:
            initial = _load_initial_weights(trainer, start.init_from or found.initial)
        several = f", {ranks.count} ranks" if ranks.count > 1 else ""
        for line in (describe_device(device) + several, *trainer.notes()):
            _print_on_leader(ranks, line)

        def open_run() -> RunFolder:
            run = found.run
            if run is None:
                run = start_run(config, device, name, archive_earlier=start.archive_earlier)
            else:
                run.resume(config, device, found.step, found.changed)
            log.attach(run.path)
            known: dict[str, Any] = {JOB: ranks.job} if ranks.may_restart else {}
            if initial is not None:
                known[INITIAL_WEIGHTS] = initial
            run.note(**known)
            run.write_status("training", process=this_process())
            return run

        run = ranks.on_leader(open_run)
        with interruptible(trainer.interrupt, ranks):  # until all results are written
            if run is None:
                return _train_follower(trainer)
            print(f"run folder: {run.path}", flush=True)
            return _train_leader(trainer, run, start.profile, fresh=found.run is None)
    finally:
        if run is not None:
            run.release()


def _load_initial_weights(trainer: RunTrainer, init_from: str | None) -> dict[str, Any] | None:
    """Load the weights of a trained team if `init_from` names a team; return a record of them."""
    if init_from is None:
        return None
    assert isinstance(trainer, Trainer)
    with found_at("--init-from"):
        checkpoint = load_team(init_from)
    record, line = trainer.start_from(checkpoint)
    _print_on_leader(trainer.ranks, line)
    return record


def _train_follower(trainer: RunTrainer) -> int:
    """Train on a rank other than 0; rank 0 reports how the run ends."""
    try:
        trainer.train(None)
    except NumericalError:
        trainer.ranks.wait_for_leader()
        return FAILED
    return 0 if trainer.is_over() else INTERRUPTED


def _train_leader(trainer: RunTrainer, run: RunFolder, profile: int, fresh: bool) -> int:
    """Train on rank 0; report the end of the run on the screen, in the folder, as exit code."""
    code, state, text = INTERRUPTED, "interrupted", "interrupted at once"
    known: dict[str, Any] = {}
    try:
        summary = trainer.train(run, profile)
    except KeyboardInterrupt:
        pass
    except NumericalError as error:
        code, state, text, fresh = FAILED, "failed", f"error: {error}", False  # keep the dump
        known = {"error": str(error)}
    except BaseException as error:
        lost = trainer.ranks.count > 1 and is_lost_rank(error)
        if lost:
            warn(_LOST_LINE)
        if fresh and trainer.steps == 0:
            run.discard()  # so that the run name is free again
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
            run.write_status("finished", **known)  # also if a signal arrived in the last step
            print(f"done: {run.summary_file}")
            return 0
    if fresh and trainer.steps == 0:
        run.discard()
        warn(f"{text}; no step was completed, so the run folder was deleted")
    else:
        run.write_status(state, **known)
        warn(f"{text}; the state of the run is in {run.path}; continue with --resume")
    return code


def _print_on_leader(ranks: Ranks, text: str) -> None:
    if ranks.leads:
        print(text, flush=True)
