"""Options of the commands that train. Loads no PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from marl_framework.command_line import add_overrides
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config, resolve_config_path
from marl_framework.config.model import Config
from marl_framework.runs.names import check_checkpoint, check_run_name

SHORT_FORMS = {
    "update_interval": "learning.update_interval",
    "batch_size": "learning.batch_size",
    "max_episodes": "learning.training_steps",
    "a_lr": "learning.actor.learning_rate",
    "c_lr": "learning.critic.learning_rate",
    "device": "compute.device",
}
"""Options that override one key; `-` may replace `_`."""


@dataclass(frozen=True)
class Start:
    """Start of a run."""

    run_name: str | None = None
    """Folder below `logging.directory`; None for a name of title and time."""
    check: bool = False
    """Whether to stop before the run begins."""
    profile: int = 0
    """Number of training steps to record."""
    resume: bool = False
    """Whether to continue the run of this name, if there is one."""
    allow_changed: Sequence[str] | None = ()
    """Keys that may differ from the resumed run; None if the command has no such option."""
    archive_earlier: bool = False
    """Whether a new run moves an earlier one of its name to the history."""
    init_from: str | None = None
    """Run folder or checkpoint of a team whose weights a new run starts with."""


# Options ------------------------------------------------------------------------------------


def add_run_options(parser: argparse.ArgumentParser, config: str | None = None) -> None:
    """Add the options of every command that trains a run.

    Args:
        parser: parser of the command.
        config: the params file without `--config`.
    """
    default = config or "$CONFIG_FILE_PATH, else the mission of --checkpoint, else params.yaml"
    parser.add_argument(
        "--config",
        default=config,
        metavar="FILE",
        help=f"params file: a path, or a name in params/ (default: {default})",
    )
    add_overrides(parser)
    parser.add_argument(
        "--run-name",
        metavar="NAME",
        help="folder of this run in logging.directory (default: title and time)",
    )
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run of this name; start it if there is none",
    )
    # Values for commands without these options.
    parser.set_defaults(
        print_config=False, profile=0, allow_changed=None, archive_earlier=False, init_from=None
    )


def add_short_forms(parser: argparse.ArgumentParser, names: Iterable[str] = SHORT_FORMS) -> None:
    """Add options of `SHORT_FORMS`; their values are overrides."""
    for name in names:
        key = SHORT_FORMS[name]
        parser.add_argument(
            *dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")),
            dest="overrides",
            action="append",
            type=f"{key}={{}}".format,
            metavar="VALUE",
            help=f"sets {key}",
        )


def add_print_config(parser: argparse.ArgumentParser) -> None:
    """Add `--print-config`."""
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the complete configuration as a params file and exit",
    )


def add_series_options(parser: argparse.ArgumentParser, option: str) -> None:
    """Add the options of several runs; `option` asks for several runs."""
    group = parser.add_argument_group("several runs")
    group.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"with {option}: train N runs at once, each in a process with its share of the "
        "cores (default: 1)",
    )
    group.add_argument(
        "--launcher",
        choices=("local", "slurm"),
        help=f"with {option}: where runs are trained; slurm submits a job for each, which is "
        "requeued and resumed when it is pre-empted (default: local)",
    )
    group.add_argument(
        "--slurm",
        metavar="NAME=VALUE,…",
        help="with --launcher slurm: options of sbatch, such as partition=gpu,time=60 [minutes]",
    )


def add_main_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m marl_framework.main`."""
    add_run_options(parser)
    add_print_config(parser)
    add_short_forms(parser)

    training = parser.add_argument_group("training")
    training.add_argument(
        "--allow-changed",
        action="append",
        default=[],
        metavar="KEY",
        help="with --resume: accept a new value of this key; repeatable",
    )
    training.add_argument(
        "--archive-earlier",
        action="store_true",
        help="first move an earlier run of this name to training_history/; ignored when resuming",
    )
    training.add_argument(
        "--init-from",
        metavar="RUN_OR_FILE",
        help="start with the weights of a trained team: a run folder, a checkpoint file or "
        "pretrained:student; ignored when resuming",
    )
    training.add_argument(
        "--profile",
        type=int,
        metavar="N",
        help="profile N training steps with torch.profiler; write profile.json",
    )
    training.add_argument(
        "--seeds",
        metavar="N,…",
        help="train several runs, NAME-N with environment.seed=N each, and sum them up in "
        "NAME-seeds.json; with --resume continue where they stopped",
    )
    training.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="SECTION.KEY=V,…",
        help="with --seeds: train them with each of these values, NAME-V-N; repeatable, then with "
        "all combinations",
    )
    add_series_options(parser, "--seeds")
    parser.add_argument("--together", action="store_true", help=argparse.SUPPRESS)  # removed

    deployment = parser.add_argument_group("deployment")
    deployment.add_argument(
        "--checkpoint",
        metavar="RUN_OR_FILE",
        help="the trained team: a checkpoint file, a run folder or pretrained:student",
    )
    deployment.add_argument(
        "--missions",
        type=int,
        metavar="N",
        help="number of missions, each over its own window of the map (default: 1)",
    )
    deployment.add_argument(
        "--html", action="store_true", help="also write mission.html, a page of each mission"
    )


# Checks -------------------------------------------------------------------------------------


def refuse(options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Refuse options that are given.

    Raises:
        ConfigError: the first one, followed by the reason.
    """
    for name in names:
        if value := getattr(options, name):
            shown = "" if value is True or isinstance(value, list) else f" {value}"
            raise ConfigError(f"--{name.replace('_', '-')}{shown} {reason}")


def require(options: argparse.Namespace, required: Mapping[str, str]) -> None:
    """Check that each option that is given comes with the one that it requires.

    Raises:
        ConfigError: one does not.
    """
    for name, other in required.items():
        if not getattr(options, other):
            refuse(options, [name], f"requires --{other.replace('_', '-')}")


def require_number(options: argparse.Namespace, name: str, least: int) -> None:
    """Check the number of an option.

    Raises:
        ConfigError: it is too low.
    """
    number = getattr(options, name)
    if number is not None and number < least:
        raise ConfigError(f"--{name} {number}: must be {least} or more")


def read_start(options: argparse.Namespace) -> Start:
    """Return the start of a run.

    Raises:
        ConfigError: a name is not allowed or missing, or there is no such checkpoint.
    """
    if options.run_name is not None:
        check_run_name(options.run_name)
    elif not (options.check or options.print_config):
        require(options, {"resume": "run_name", "archive_earlier": "run_name"})
    if options.init_from is not None:
        check_checkpoint("--init-from", options.init_from)
    require_number(options, "profile", 0)
    return Start(
        options.run_name,
        options.check,
        options.profile or 0,
        options.resume,
        options.allow_changed,
        options.archive_earlier and not options.resume,
        options.init_from,
    )


def load_options(options: argparse.Namespace) -> Config:
    """Return the configuration of `--config` and the overrides.

    Raises:
        ConfigError: it is invalid.
    """
    return load_config(resolve_config_path(options.config), options.overrides)
