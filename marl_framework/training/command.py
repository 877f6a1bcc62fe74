"""Implementation of `python -m marl_framework.main`, up to the first training step."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from marl_framework.command_line import BAD_INPUT, loaded, warn
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.runs.log import RunLog
from marl_framework.runs.names import checkpoint_file
from marl_framework.training.guard import guarded
from marl_framework.training.options import (
    print_config,
    read_start,
    refuse,
    require,
    require_number,
)
from marl_framework.training.ranks import Ranks
from marl_framework.training.series import read_launch, read_series, train_series

# Functions import the modules that load PyTorch, so that bad input is reported at once.
if TYPE_CHECKING:
    from marl_framework.planners.team import Checkpoint


def run(options: argparse.Namespace) -> int:
    """Run the command `main`; return the exit code, see `main.main`."""
    try:
        ranks = Ranks.of()
    except ConfigError as error:
        warn(f"error: {error}")
        return BAD_INPUT
    return guarded(lambda log: _run(options, ranks, log), ranks)


def _run(options: argparse.Namespace, ranks: Ranks, log: RunLog) -> int:
    """Check the options, load the configuration and do the work; return the exit code."""
    start = read_start(options)
    _check_options(options, ranks)
    launch = read_launch(options, start, "seeds")
    config, checkpoint = _configuration(options)
    _check_use(options, config, ranks)
    series = {}
    if options.seeds is not None:
        series = read_series(config, options.run_name, options.seeds, options.vary)
    if options.print_config:
        return print_config(config) if ranks.leads else 0
    if not config.trains:
        return _fly(config, checkpoint, options)
    if series and not start.check:
        return train_series(launch, config, series)
    from marl_framework.training.team import train_team

    loaded()
    # Check one run per series: the seed cannot make a configuration invalid.
    checked = [next(iter(runs.values())) for runs in series.values()] or [config]
    return max(train_team(each, start, log, ranks) for each in checked)


def _fly(config: Config, checkpoint: Checkpoint | None, options: argparse.Namespace) -> int:
    """Fly missions without training: deploy a team, or fly a baseline planner."""
    from marl_framework.deployment.flights import deploy
    from marl_framework.device import resolve_device
    from marl_framework.evaluation.comparison import fly_baseline

    loaded()
    device = resolve_device(config.compute.device)
    if config.experiment.missions.mission_mode == "deployment":
        return deploy(config, device, checkpoint, options)
    return fly_baseline(config, device, options)


def _configuration(options: argparse.Namespace) -> tuple[Config, Checkpoint | None]:
    """Return the configuration (of the params file, or else of the team) and the trained team."""
    name = options.config
    if options.checkpoint is None:
        return load_config("params.yaml" if name is None else name, options.overrides), None
    checkpoint_file(options.checkpoint)  # reports a missing checkpoint before PyTorch loads
    from marl_framework.planners.team import deployed_config, load_team, mission_config

    checkpoint = load_team(options.checkpoint)
    if name is None:
        return deployed_config(options.overrides, checkpoint), checkpoint
    return mission_config(name, options.overrides, checkpoint), checkpoint


def _check_options(options: argparse.Namespace, ranks: Ranks) -> None:
    """Check the options that are specific to `main`."""
    require(options, {"vary": "seeds", "allow_changed": "resume"})
    if not (options.check or options.print_config):
        require(options, {"seeds": "run_name"})
    if options.seeds is not None:
        keys = (text.partition("=")[0].strip() for text in options.overrides)
        if "environment.seed" in keys:
            raise ConfigError("--set environment.seed: set the seeds with --seeds")
    require_number("missions", options.missions, 1)
    if ranks.count > 1:
        refuse(options, ["seeds"], "cannot be used with torchrun; start one training at a time")
    if ranks.may_restart and options.run_name is None:
        raise ConfigError("torchrun --max-restarts requires --run-name")


def _check_use(options: argparse.Namespace, config: Config, ranks: Ranks) -> None:
    """Check that the configuration uses all given options."""
    mode, policy = config.experiment.missions.mission_mode, config.experiment.policy
    if mode != "deployment":
        reason = f"requires experiment.missions.mission_mode: deployment; it is {mode}"
        refuse(options, ["checkpoint", "missions", "html"], reason)
    if policy != LEARNED:
        refuse(options, ["checkpoint"], f"requires experiment.policy: learned; it is {policy}")
    if not config.trains:
        unused = ["resume", "seeds", "init_from", "profile"]
        refuse(options, unused, "cannot be used: this configuration does not train")
        if ranks.count > 1:
            raise ConfigError(f"torchrun: {ranks.count} ranks cannot fly missions; omit torchrun")
