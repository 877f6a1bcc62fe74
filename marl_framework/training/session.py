"""A training from its start to its end: new or resumed, finished, interrupted or failed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from marl_framework.config import Config
from marl_framework.device import describe_device
from marl_framework.training.memory import (
    check_memory,
    device_memory,
    is_out_of_memory,
    memory_advice,
)
from marl_framework.training.resume import find_run, go_on
from marl_framework.training.run_folder import RunFolder
from marl_framework.training.trainer import NumericalError, Trainer

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def train(
    config: Config,
    device: torch.device,
    run_name: str | None,
    *,
    check: bool = False,
    profile: int = 0,
    resume: bool = False,
    allow_changed: Sequence[str] = (),
) -> int:
    """Train under a run name; return the exit code: 0 done, 1 failed, 130 interrupted.

    Args:
        config: what to train.
        device: where.
        run_name: folder below `logging.directory`; None for one from title and time.
        check: only see whether the training could start.
        profile: training steps to record, 0 = none.
        resume: go on where the run of this name stopped; start it where there is none.
        allow_changed: keys that may differ from what a resumed run began with.

    Raises:
        ConfigError: the training cannot start.
    """
    check_memory(config, device)
    try:
        if check:
            Trainer(config, device)
            print("the configuration is valid")
            return 0
        return _start_or_resume(config, device, run_name, profile, resume, allow_changed)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        free, _ = device_memory(device)
        held = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        _warn(
            f"error: out of memory on {device}: try --set {memory_advice(config, free + held)}; "
            "earlier checkpoints are intact, go on with --resume --allow-changed KEY"
        )
        return EXIT_FAILED


def _start_or_resume(
    config: Config,
    device: torch.device,
    run_name: str | None,
    profile: int,
    resume: bool,
    allow_changed: Sequence[str],
) -> int:
    found = None
    if resume and run_name is not None:
        found = find_run(config.logging.directory, run_name, config, allow_changed, _warn)
    try:
        if found is not None and found.finished:
            print(f"finished already: {found.run.summary}")
            return 0
        trainer = Trainer(config, device)
        if found is not None and found.payload is not None:
            trainer.load_state_dict(found.payload, _warn)
        print(describe_device(device), flush=True)
        if found is None:
            run = RunFolder.create(config.logging.directory, run_name, config, device)
        else:
            run = found.run
            go_on(found, config, device)
        print(f"run folder: {run.path}", flush=True)
        try:
            return _train(trainer, run, profile, fresh=found is None)
        finally:
            run.release()
    finally:
        if found is not None:
            found.run.release()


def _train(trainer: Trainer, run: RunFolder, profile: int, fresh: bool) -> int:
    """Train; say how it ended, on the screen, in the run folder and as exit code."""
    known: dict[str, Any] = {}
    try:
        with _interruptible(trainer):
            summary = trainer.train(run, profile)
    except KeyboardInterrupt:
        state, code, text = "interrupted", EXIT_INTERRUPTED, "interrupted at once"
    except NumericalError as error:
        state, code, text = "failed", EXIT_FAILED, f"error: {error}"
        fresh = False  # the state that explains it stays
    except BaseException as error:
        if fresh and trainer.coma.training_steps == 0:
            run.discard()  # nothing was learned yet; the name stays free
        else:
            run.write_status("failed", error=f"{type(error).__name__}: {error}"[:1000])
        raise
    else:
        run.write_summary(**summary)
        results = summary["results"]
        known = {name: results[name] for name in ("training_steps", "episodes", "last", "best")}
        known["training_step"] = known.pop("training_steps")
        if results["finished"]:  # also where a signal came in the last step
            run.write_status("finished", **known)
            print(f"done: {run.summary}")
            return 0
        state, code, text = "interrupted", EXIT_INTERRUPTED, "interrupted"
    if fresh and trainer.coma.training_steps == 0:
        run.discard()
        print(f"{text}; nothing was learned yet", file=sys.stderr)
        return code
    run.write_status(state, **known)
    print(f"{text}; what was reached is in {run.path}; go on with --resume", file=sys.stderr)
    return code


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _interruptible(trainer: Trainer) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the training after its current step; a second one at once."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if trainer.interrupted:
            raise KeyboardInterrupt
        trainer.interrupt()

    earlier = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
