"""What `python -m marl_framework.main` does with its options, up to the first training step."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from marl_framework.command_line import BAD_INPUT, loaded, warn
from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.loading import config_to_dict, load_config, resolve_config_path
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.config.yaml_text import format_yaml
from marl_framework.runs.guard import guarded
from marl_framework.runs.log import RunLog
from marl_framework.runs.names import check_checkpoint, check_run_name, checkpoint_file
from marl_framework.training.jobs import check_jobs, train_runs
from marl_framework.training.ranks import Ranks
from marl_framework.training.seeds import (
    check_different,
    check_free,
    read_seeds,
    read_variants,
    train_each,
    with_seeds,
)

# Modules that load PyTorch are imported where they are used: bad input is told at once.
if TYPE_CHECKING:
    from marl_framework.planners.team import Checkpoint

_FOR_TRAININGS = {
    "resume": " to continue; leave it out",
    "seeds": "; evaluate flies missions of one seed",
    "init_from": "; --checkpoint names a team that flies",
}
"""Options that need one, and what to do where there is none."""


def run(options: argparse.Namespace) -> int:
    """Do what the options say; return the exit code, see `main.main`."""
    try:
        ranks = Ranks.of()
    except ConfigError as error:
        warn(f"error: {error}")
        return BAD_INPUT
    return guarded(lambda log: _run(options, ranks, log), ranks)


def _run(options: argparse.Namespace, ranks: Ranks, log: RunLog) -> int:
    config, checkpoint = _configuration(options, ranks)
    seeded = _seeded(options, config)
    if options.print_config:
        if ranks.leads:
            print(format_yaml(config_to_dict(config)), end="", flush=True)
        return 0
    from marl_framework.deployment.flights import deploy
    from marl_framework.evaluation.flight_run import fly_baseline
    from marl_framework.training.distributed import check_ranks, rank_device
    from marl_framework.training.launch import Start, train

    loaded()
    check_ranks(config, ranks)
    device = rank_device(config, ranks)
    if config.experiment.missions.mission_mode == "deployment":
        return deploy(config, device, checkpoint, options)
    if config.experiment.policy != LEARNED:
        return fly_baseline(config, device, options)

    start = Start(
        options.check,
        options.profile,
        options.resume,
        options.allow_changed,
        options.archive_earlier and not options.resume,
        options.init_from,
    )
    train_one = partial(train, device=device, start=start, ranks=ranks)
    if options.check:  # seeds differ in nothing that could be wrong
        checked = [next(iter(runs.values())) for runs in seeded.values()] or [config]
        return max(train_one(each, run_name=options.run_name, log=log) for each in checked)
    if not seeded:
        return train_one(config, run_name=options.run_name, log=log)
    train_all = partial(train_runs, train=train_one, log=log, jobs=options.jobs)
    return train_each(seeded, train_all, Path(config.logging.directory))


def _configuration(options: argparse.Namespace, ranks: Ranks) -> tuple[Config, Checkpoint | None]:
    """Return what is flown: of the params file, or without one the mission of the checkpoint."""
    name = options.config
    if name is None:
        name = os.environ.get("CONFIG_FILE_PATH") or None
    if options.run_name is not None:
        check_run_name(options.run_name)
    checkpoint = None
    if options.checkpoint is None:
        config = load_config(
            resolve_config_path("params.yaml" if name is None else name), options.overrides
        )
    else:
        checkpoint_file(options.checkpoint)  # a missing one is told before PyTorch loads
        from marl_framework.planners.team import deployed_config, load_team, mission_config

        checkpoint = load_team(options.checkpoint)
        if name is None:
            config = deployed_config(options.overrides, checkpoint)
        else:
            config = mission_config(name, options.overrides, checkpoint)
    _check_options(options, config, ranks)
    return config, checkpoint


def _seeded(options: argparse.Namespace, config: Config) -> dict[str, dict[str, Config]]:
    """Return the series of `--seeds` and `--vary` by name, each with its runs; empty without."""
    if options.seeds is None:
        return {}
    seeds, series = read_seeds(options.seeds), {}
    for variant, overrides in read_variants(options.vary).items():
        name = f"{options.run_name}{variant}"
        series[name] = with_seeds(config, name, seeds, overrides)
        for run in series[name]:
            with found_at("--vary" if options.vary else "--seeds"):
                check_run_name(run)
        if not (options.resume or options.archive_earlier or options.check or options.print_config):
            check_free(series[name])
    check_different(series)
    return series


def _check_options(options: argparse.Namespace, config: Config, ranks: Ranks) -> None:
    """Check options that the params file does not know.

    Raises:
        ConfigError: one makes no sense with this configuration.
    """
    missions = config.experiment.missions
    deployed = missions.mission_mode == "deployment"
    if ranks.count > 1 and not config.trains:
        raise ConfigError(
            f"torchrun: {ranks.count} ranks can only train; fly missions with python -m "
            "marl_framework.main"
        )
    if ranks.may_restart and options.run_name is None:
        raise ConfigError(
            "torchrun --max-restarts: name the run with --run-name, so that it can continue"
        )
    for option, advice in _FOR_TRAININGS.items():
        if getattr(options, option) not in (None, False) and not config.trains:
            name = option.replace("_", "-")
            raise ConfigError(f"--{name}: there is no training{advice}")
    if options.run_name is None and not (options.check or options.print_config):
        if options.resume:
            raise ConfigError("--resume: name the run to continue with --run-name")
        if options.archive_earlier:
            raise ConfigError("--archive-earlier: name the run to move with --run-name")
        if options.seeds is not None:
            raise ConfigError("--seeds: name the runs with --run-name")
    if options.seeds is not None and ranks.count > 1:
        raise ConfigError("--seeds: under torchrun start one training after the other")
    if options.vary and options.seeds is None:
        raise ConfigError("--vary: goes with --seeds, for one seed shows little")
    check_jobs(options.jobs, options.seeds is not None, "--seeds")
    if options.together:
        raise ConfigError("--together: use --jobs N, which trains N runs at once")
    if options.allow_changed and not options.resume:
        raise ConfigError("--allow-changed: works only with --resume")
    if options.profile < 0:
        raise ConfigError(
            f"--profile {options.profile}: give a number of training steps, 1 or more"
        )
    if options.init_from is not None:
        check_checkpoint("--init-from", options.init_from)  # before PyTorch loads
    if options.profile and not config.trains:
        raise ConfigError(f"--profile {options.profile}: there is no training to record")
    if options.missions is not None and options.missions < 1:
        raise ConfigError(f"--missions {options.missions}: give a number of missions, 1 or more")
    for option in ("checkpoint", "missions", "html"):
        if getattr(options, option) not in (None, False) and not deployed:
            raise ConfigError(
                f"--{option}: works only with experiment.missions.mission_mode: deployment, and "
                f"it is {missions.mission_mode}"
            )
    if options.checkpoint is not None and config.experiment.policy != LEARNED:
        raise ConfigError(
            f"--checkpoint: experiment.policy: {config.experiment.policy} needs no trained team; "
            "choose learned"
        )
