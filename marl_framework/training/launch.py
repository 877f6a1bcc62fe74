"""A training run from its start to its end: new or resumed, finished, interrupted or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from marl_framework.command_line import FAILED, INTERRUPTED, warn
from marl_framework.config.errors import found_at
from marl_framework.config.model import Config
from marl_framework.device import describe_device, resolve_device
from marl_framework.kernels.versions import window_kernels
from marl_framework.planners.team import load_team
from marl_framework.runs.folder import INITIAL_WEIGHTS, RunFolder
from marl_framework.runs.log import RunLog
from marl_framework.runs.process import this_process
from marl_framework.runs.start import leave_run, start_run
from marl_framework.training.distributed import is_lost_rank, joined, note_job, started_by
from marl_framework.training.memory import (
    check_memory,
    device_memory,
    is_out_of_memory,
    memory_advice,
)
from marl_framework.training.not_finite import NumericalError
from marl_framework.training.ranks import LeaderError, Ranks
from marl_framework.training.resume import Resumption, find_run, go_on
from marl_framework.training.signals import interruptible
from marl_framework.training.trainer import Trainer

_LOST = "another rank ended early; torchrun's report gives the reason"


@dataclass(frozen=True)
class Start:
    """How a training run starts."""

    check: bool = False
    """Only see whether it could."""
    profile: int = 0
    """Training steps to record, 0 = none."""
    resume: bool = False
    """Continue the run of this name; start it where there is none."""
    allow_changed: Sequence[str] = ()
    """Keys that may differ from what a resumed run began with."""
    archive_earlier: bool = False
    """A new run first moves an earlier one of its name to the history."""
    init_from: str | None = None
    """Run folder or checkpoint of a team whose weights a new run starts with; a resumed one needs
    it no more."""


def train(
    config: Config,
    device: torch.device,
    start: Start,
    ranks: Ranks,
    *,
    run_name: str | None,
    log: RunLog,
) -> int:
    """Train under a run name; return the exit code: 0 done, 1 failed, 130 interrupted.

    Args:
        config: what to train.
        device: where.
        start: how.
        ranks: the place of this process among those that train together.
        run_name: folder below `logging.directory`; None for one from title and time.
        log: is attached to the run folder.

    Raises:
        ConfigError: the training cannot start.
        LeaderError: rank 0 could not start it.
    """
    check_memory(config, device, ranks.count)
    try:
        with joined(config, device, ranks):
            if start.check:
                _initial(Trainer(config, device, ranks), start.init_from)
                _say(ranks, "the configuration is valid")
                return 0
            return _start_or_resume(config, device, start, ranks, run_name, log)
    except Exception as error:
        if ranks.count > 1 and is_lost_rank(error):
            if ranks.leads:
                _say_lost()
            ranks.wait_for_leader()
            return FAILED
        if not is_out_of_memory(error):
            raise
        free, _ = device_memory(device)
        held = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        advice = memory_advice(config, free + held, ranks.count if held else 1, device)
        warn(
            f"error: out of memory on {device}: try --set {advice}; a run with checkpoints "
            "continues with --resume --allow-changed KEY"
        )
        return FAILED


def train_on_own_device(config: Config, start: Start, *, run_name: str, log: RunLog) -> int:
    """Train on the device that the configuration names; see `train`."""
    device = resolve_device(config.compute.device)
    return train(config, device, start, Ranks(), run_name=run_name, log=log)


def _start_or_resume(
    config: Config,
    device: torch.device,
    start: Start,
    ranks: Ranks,
    run_name: str | None,
    log: RunLog,
) -> int:
    def find() -> Resumption | None:
        if run_name is None or not (start.resume or started_by(config, run_name, ranks)):
            return None
        return find_run(run_name, config, Trainer.mark, start.allow_changed, warn)

    found = ranks.on_leader(
        find, lambda f: f and Resumption(None, f.payload, {}, f.finished, f.initial)
    )
    try:
        if found is not None and found.finished:
            _say(ranks, f"finished already: {found.run and found.run.summary_file}")
            return 0
        initial = None
        payload = None if found is None else found.payload
        made = 0 if payload is None else int(payload["training_step"])
        trainer = Trainer(config, device, ranks, made)
        if payload is not None:
            trainer.load_state_dict(payload, warn if ranks.leads else lambda _: None)
        else:
            initial = _initial(trainer, start.init_from or (found and found.initial))
        _say(ranks, describe_device(device) + (f", {ranks.count} ranks" if ranks.count > 1 else ""))

        if device.type == "cuda":
            _say(ranks, _windows(config, device))

        def claim() -> RunFolder:
            if found is None:
                earlier = start.archive_earlier
                run = start_run(config, device, run_name, archive_earlier=earlier)
            else:
                run = found.run
                go_on(found, config, device)
            log.attach(run.path)
            note_job(run.path, ranks)
            if initial is not None:
                run.note(**{INITIAL_WEIGHTS: initial})
            run.write_status("training", process=this_process())
            return run

        run = ranks.on_leader(claim)
        if run is None:
            with interruptible(trainer, ranks):
                return _follow(trainer)
        print(f"run folder: {run.path}", flush=True)
        try:
            with interruptible(trainer, ranks):  # until all is written
                return _train(trainer, run, start.profile, fresh=found is None)
        finally:
            run.release()
    finally:
        if found is not None and found.run is not None:
            found.run.release()


def _initial(trainer: Trainer, init_from: str | None) -> dict[str, Any] | None:
    """Start with the weights of a trained team, if one is named; return a record of it."""
    if init_from is None:
        return None
    with found_at("--init-from"):
        checkpoint = load_team(init_from)
    record, line = trainer.start_from(checkpoint)
    _say(trainer.ranks, line)
    return record


def _follow(trainer: Trainer) -> int:
    """Train on a rank that does not lead; the leader reports how it ended."""
    try:
        trainer.train(None)
    except NumericalError:
        trainer.ranks.wait_for_leader()
        return FAILED
    return 0 if trainer.is_over() else INTERRUPTED


def _train(trainer: Trainer, run: RunFolder, profile: int, fresh: bool) -> int:
    """Train; report how it ended, on the screen, in the run folder and as exit code.

    Raises:
        LeaderError: another rank is gone.
    """
    known: dict[str, Any] = {}
    try:
        summary = trainer.train(run, profile)
    except KeyboardInterrupt:
        state, code, text = "interrupted", INTERRUPTED, "interrupted at once"
    except NumericalError as error:
        state, code, text = "failed", FAILED, f"error: {error}"
        fresh = False  # the state that explains it stays
    except BaseException as error:
        lost = trainer.ranks.count > 1 and is_lost_rank(error)
        if lost:
            _say_lost()
        if fresh and trainer.algorithm.training_steps == 0:
            run.discard()  # nothing was learned yet; the name stays free
        else:
            reason = _LOST if lost else f"{type(error).__name__}: {error}"[:1000]
            run.write_status("failed", error=reason)
        if lost:
            raise LeaderError(FAILED) from error
        raise
    else:
        run.write_summary(**summary)
        results = summary["results"]
        known = {name: results[name] for name in ("training_steps", "episodes", "last", "best")}
        known["training_step"] = known.pop("training_steps")
        if results["finished"]:  # also where a signal came in the last step
            run.write_status("finished", **known)
            print(f"done: {run.summary_file}")
            return 0
        state, code, text = "interrupted", INTERRUPTED, "interrupted"
    empty = fresh and trainer.algorithm.training_steps == 0
    leave_run(run, state, text, empty=empty, **known)
    return code


def _windows(config: Config, device: torch.device) -> str:
    """Return one line about what computes footprint windows on a GPU, and what slows it down."""
    kernels, lack = window_kernels(config.compute, device)
    line = f"window kernels: {kernels}"
    if lack is None:
        return line
    line += f", which are slower, because {lack.reason}"
    if config.compute.deterministic:
        line += "; compute.deterministic makes them sort all windows, which is slower still"
    return f"{line}; fix: {lack.fix}" if lack.fix else line


def _say(ranks: Ranks, text: str) -> None:
    if ranks.leads:
        print(text, flush=True)


def _say_lost() -> None:
    warn(f"error: {_LOST}; earlier checkpoints are intact, continue with --resume")
