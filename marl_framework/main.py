"""Trains or flies what a params file describes: `python -m marl_framework.main`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import torch

from marl_framework.config import Config
from marl_framework.config_io import ConfigError, ConfigWarning, load_config, resolve_config_path
from marl_framework.device import describe_device, resolve_device
from marl_framework.evaluation import comparison, deployment
from marl_framework.evaluation.teams import MISSION_TYPES, Checkpoint, find_checkpoint, world
from marl_framework.training.run_folder import TRAINING_FOLDERS, RunFolder, check_run_name
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
        "--checkpoint",
        metavar="RUN_OR_FILE",
        help="deployment: the trained team, a checkpoint or a run folder",
    )
    parser.add_argument(
        "--missions", type=int, metavar="N", help="deployment: windows of the map (default: 1)"
    )
    parser.add_argument("--check", action="store_true", help="check the configuration, do nothing")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 0 done, 2 bad input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted at once", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    config, checkpoint = _configuration(options)
    device = resolve_device(config.networks.device)
    missions = config.experiment.missions
    if missions.mission_mode == "deployment":
        return _deploy(options, config, device, checkpoint)
    if missions.type != "COMA":
        return _fly_baseline(options, config, device)
    return _train(options, config, device)


def _train(options: argparse.Namespace, config: Config, device: torch.device) -> int:
    trainer = Trainer(config, device)
    if options.check:
        return _valid()
    run = _start(options, config, device, TRAINING_FOLDERS)
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


def _fly_baseline(options: argparse.Namespace, config: Config, device: torch.device) -> int:
    """Fly a planner that needs no training; its evaluation goes into the run folder."""
    kind, baselines = config.experiment.missions.type, config.experiment.baselines
    trials = {
        "random": baselines.random.n_episodes,
        "lawnmower": baselines.lawnmower.trials,
        "information_gain": baselines.information_gain.trials,
    }[kind]
    flights = comparison.prepare(
        config, device, [MISSION_TYPES[kind]], trials, config.environment.seed
    )
    if options.check:
        return _valid()
    run = _start(options, config, device)
    with _discarded_after_errors(run):
        start = time.perf_counter()
        records = flights.fly()
        seconds = time.perf_counter() - start
        found = flights.results(records)
        print(comparison.write(records, found, run.path), end="")
        run.write_summary(
            found["summary"], {"seconds": seconds, **found["timing"]}, found["machine"]
        )
    print(f"done: {run.summary}")
    return 0


def _deploy(
    options: argparse.Namespace,
    config: Config,
    device: torch.device,
    checkpoint: Checkpoint | None,
) -> int:
    """Fly windows of a measured map; beliefs, waypoints and figures go into the run folder."""
    flights = deployment.prepare(config, device, options.missions or 1, checkpoint)
    if options.check:
        return _valid()
    run = _start(options, config, device)
    with _discarded_after_errors(run):
        start = time.perf_counter()
        record = flights.fly()
        seconds = time.perf_counter() - start
        results = {
            "planner": record.planner,
            "checkpoint": None if checkpoint is None else checkpoint.path,
            "coordinate_frame": deployment.FRAME,
            "cell_size_m": config.cell_size,
            "missions": flights.write(record, run.path),
        }
        run.write_summary(results, {"seconds": seconds}, {"device": describe_device(device)})
    print(f"done: {run.summary}")
    return 0


def _valid() -> int:
    print("the configuration is valid")
    return 0


def _start(
    options: argparse.Namespace, config: Config, device: torch.device, folders: Sequence[str] = ()
) -> RunFolder:
    """Claim the run folder, and say where things happen."""
    run = RunFolder.create(config.logging.directory, options.run_name, config, device, folders)
    print(f"{describe_device(device)}\nrun folder: {run.path}", flush=True)
    return run


@contextmanager
def _discarded_after_errors(run: RunFolder) -> Iterator[None]:
    """Keep the name of a run free whose flights did not end."""
    try:
        yield
    except BaseException:
        run.discard()
        raise


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


def _configuration(options: argparse.Namespace) -> tuple[Config, Checkpoint | None]:
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
    _check_options(options, config)
    if options.checkpoint is None:
        return config, None
    checkpoint = find_checkpoint(options.checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # said above
        return world(name, overrides, checkpoint), checkpoint


def _check_options(options: argparse.Namespace, config: Config) -> None:
    """Check options that the params file does not know.

    Raises:
        ConfigError: one makes no sense with this configuration.
    """
    missions = config.experiment.missions
    deployed = missions.mission_mode == "deployment"
    if options.profile < 0:
        raise ConfigError(
            f"--profile {options.profile}: give a number of training steps, 1 or more"
        )
    if options.profile and (deployed or missions.type != "COMA"):
        raise ConfigError(f"--profile {options.profile}: there is no training to record")
    if options.missions is not None and options.missions < 1:
        raise ConfigError(f"--missions {options.missions}: give a number of missions, 1 or more")
    for option in ("checkpoint", "missions"):
        if getattr(options, option) is not None and not deployed:
            raise ConfigError(
                f"--{option}: is for experiment.missions.mission_mode: deployment, and it is "
                f"{missions.mission_mode}"
            )
    if options.checkpoint is not None and missions.type != "COMA":
        raise ConfigError(
            f"--checkpoint: experiment.missions.type: {missions.type} needs no trained team; "
            "choose COMA"
        )


if __name__ == "__main__":
    sys.exit(main())
