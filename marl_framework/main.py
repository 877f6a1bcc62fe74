"""Trains the team that a params file describes: `python -m marl_framework.main`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from marl_framework.config import Config
from marl_framework.config_io import ConfigError, ConfigWarning, load_config, resolve_config_path
from marl_framework.device import describe_device, resolve_device
from marl_framework.training.files import check_run_name
from marl_framework.training.memory import (
    check_memory,
    device_memory,
    is_out_of_memory,
    memory_advice,
)
from marl_framework.training.resume import find_run, go_on
from marl_framework.training.run_folder import RunFolder
from marl_framework.training.trainer import NumericalError, Trainer

_EXIT_FAILED = 1
_EXIT_BAD_INPUT = 2
_EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marl_framework.main", description=__doc__)
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="params file: a path, or a name in params/ (default: CONFIG_FILE_PATH, params.yaml)",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override a key of the params file; may be repeated",
    )
    parser.add_argument("--run-name", metavar="NAME", help="name of the folder of this run")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; short for networks.device")
    parser.add_argument(
        "--profile",
        type=int,
        default=0,
        metavar="N",
        help="record N training steps with torch.profiler into profile.json",
    )
    parser.add_argument(
        "--check", action="store_true", help="check the configuration, train nothing"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on where the run of this name stopped; start it where there is none",
    )
    parser.add_argument(
        "--allow-changed",
        action="append",
        default=[],
        metavar="KEY",
        help="with --resume: this key may differ from what the run began with; may be repeated",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    0 done, 1 the training failed, 2 bad input, 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:  # before or after the training
        print("interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        print(f"error: {reason}; go on with --resume once that is mended", file=sys.stderr)
        return _EXIT_FAILED


def _run(options: argparse.Namespace) -> int:
    config = _configuration(options)
    device = resolve_device(config.networks.device)
    check_memory(config, device)
    try:
        return _run_on(device, config, options)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        free, _ = device_memory(device)
        held = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        print(
            f"error: out of memory on {device}: try --set {memory_advice(config, free + held)}; "
            "earlier checkpoints are intact, go on with --resume --allow-changed KEY",
            file=sys.stderr,
        )
        return _EXIT_FAILED


def _run_on(device: torch.device, config: Config, options: argparse.Namespace) -> int:
    if options.check:
        Trainer(config, device)
        print("the configuration is valid")
        return 0
    found = None
    if options.resume:
        found = find_run(
            config.logging.directory, options.run_name, config, options.allow_changed, _warn
        )
    try:
        if found is not None and found.finished:
            print(f"finished already: {found.run.summary}")
            return 0
        trainer = Trainer(config, device)
        if found is not None and found.payload is not None:
            trainer.load_state_dict(found.payload, _warn)
        print(describe_device(device), flush=True)
        if found is None:
            run = RunFolder.create(config.logging.directory, options.run_name, config, device)
        else:
            run = found.run
            go_on(found, config, device)
        print(f"run folder: {run.path}", flush=True)
        try:
            return _train(trainer, run, options.profile, fresh=found is None)
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
        state, code, text = "interrupted", _EXIT_INTERRUPTED, "interrupted at once"
    except NumericalError as error:
        state, code, text = "failed", _EXIT_FAILED, f"error: {error}"
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
        state, code, text = "interrupted", _EXIT_INTERRUPTED, "interrupted"
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


def _configuration(options: argparse.Namespace) -> Config:
    name = options.config or os.environ.get("CONFIG_FILE_PATH") or "params.yaml"
    overrides = list(options.overrides)
    if options.device is not None:
        overrides.append(f"networks.device={options.device}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        config = load_config(resolve_config_path(name), overrides)
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    if options.run_name is not None:
        check_run_name(options.run_name)
    if options.resume and options.run_name is None and not options.check:
        raise ConfigError("--resume: name the run to go on with by --run-name")
    if options.allow_changed and not options.resume:
        raise ConfigError("--allow-changed: is for --resume only")
    if options.profile < 0:
        raise ConfigError(
            f"--profile {options.profile}: give a number of training steps, 1 or more"
        )
    missions = config.experiment.missions
    if missions.type != "COMA":
        raise ConfigError(
            f"experiment.missions.type: {missions.type} needs no training; fly it with "
            f"python -m marl_framework.evaluate --policies {missions.type}, or choose COMA"
        )
    if missions.mission_mode != "training":
        raise ConfigError(
            "experiment.missions.mission_mode: deployment is not available yet; choose training, "
            "and fly a checkpoint with python -m marl_framework.evaluate"
        )
    return config


if __name__ == "__main__":
    sys.exit(main())
