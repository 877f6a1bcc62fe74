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

from marl_framework.config import Config
from marl_framework.config_io import ConfigError, ConfigWarning, load_config, resolve_config_path
from marl_framework.device import describe_device, resolve_device
from marl_framework.training.run_folder import RunFolder, check_run_name
from marl_framework.training.trainer import Trainer

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
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 0 done, 2 bad input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT


def _run(options: argparse.Namespace) -> int:
    config = _configuration(options)
    device = resolve_device(config.networks.device)
    trainer = Trainer(config, device)
    if options.check:
        print("the configuration is valid")
        return 0
    print(describe_device(device), flush=True)
    run = RunFolder.create(config.logging.directory, options.run_name, config, device)
    print(f"run folder: {run.path}", flush=True)
    try:
        with _interruptible(trainer):
            summary = trainer.train(run, options.profile)
    except BaseException:
        if trainer.coma.training_steps == 0:
            run.discard()  # nothing was learned yet; the name stays free
        raise
    run.write_summary(**summary)
    if trainer.interrupted:
        print(f"interrupted; what was reached is in {run.path}")
        return _EXIT_INTERRUPTED
    print(f"done: {run.summary}")
    return 0


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
