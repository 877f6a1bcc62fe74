"""Options of the commands that train. Loads no PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_framework.command_line import add_overrides
from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.loading import config_to_dict, load_config, resolve_config_path
from marl_framework.config.model import Config
from marl_framework.config.yaml_text import format_yaml
from marl_framework.runs.names import check_run_name, checkpoint_file

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
    text = f"params file: a path, or a name in params/ (default: {default})"
    _add(parser, "config", "FILE", text, default=config)
    add_overrides(parser)
    text = "folder of this run in logging.directory (default: title and time)"
    _add(parser, "run-name", "NAME", text)
    _flag(parser, "check", "check the configuration and exit")
    _flag(parser, "resume", "continue the run of this name; start it if there is none")
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
    _flag(parser, "print-config", "print the complete configuration as a params file and exit")


def add_series_options(parser: argparse.ArgumentParser, option: str) -> None:
    """Add the options of several runs; `option` asks for several runs."""
    group = parser.add_argument_group("several runs")
    text = f"with {option}: train N runs at once, each in a process with its share of the cores "
    _add(group, "jobs", "N", f"{text}(default: 1)", type=int)
    group.add_argument(
        "--launcher",
        choices=("local", "slurm"),
        help=f"with {option}: where runs are trained; slurm submits a job for each, which is "
        "requeued and resumed when it is pre-empted (default: local)",
    )
    text = "with --launcher slurm: options of sbatch, such as partition=gpu,time=60 [minutes]"
    _add(group, "slurm", "NAME=VALUE,…", text)


def add_main_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m marl_framework.main`."""
    several: dict[str, Any] = {"action": "append", "default": []}
    add_run_options(parser)
    add_print_config(parser)
    add_short_forms(parser)

    training = parser.add_argument_group("training")
    text = "with --resume: accept a new value of this key; repeatable"
    _add(training, "allow-changed", "KEY", text, **several)
    text = "first move an earlier run of this name to training_history/; ignored when resuming"
    _flag(training, "archive-earlier", text)
    text = "start with the weights of a trained team: a run folder, a checkpoint file or "
    _add(training, "init-from", "RUN_OR_FILE", f"{text}pretrained:student; ignored when resuming")
    text = "profile N training steps with torch.profiler; write profile.json"
    _add(training, "profile", "N", text, type=int)
    text = "train several runs, NAME-N with environment.seed=N each, and sum them up in "
    text += "NAME-seeds.json; with --resume continue where they stopped"
    _add(training, "seeds", "N,…", text)
    text = "with --seeds: train them with each of these values, NAME-V-N; repeatable, then with "
    _add(training, "vary", "SECTION.KEY=V,…", f"{text}all combinations", **several)
    add_series_options(parser, "--seeds")
    _flag(parser, "together", argparse.SUPPRESS)  # removed

    deployment = parser.add_argument_group("deployment")
    text = "the trained team: a checkpoint file, a run folder or pretrained:student"
    _add(deployment, "checkpoint", "RUN_OR_FILE", text)
    text = "number of missions, each over its own window of the map (default: 1)"
    _add(deployment, "missions", "N", text, type=int)
    _flag(deployment, "html", "also write mission.html, a page of each mission")


def _add(
    parser: argparse._ActionsContainer, name: str, metavar: str, text: str, **more: Any
) -> None:
    parser.add_argument(f"--{name}", metavar=metavar, help=text, **more)


def _flag(parser: argparse._ActionsContainer, name: str, text: str) -> None:
    parser.add_argument(f"--{name}", action="store_true", help=text)


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


def require_number(name: str, number: int | None, least: int) -> None:
    """Check the number of an option.

    Raises:
        ConfigError: it is too low.
    """
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
        with found_at("--init-from"):
            checkpoint_file(options.init_from)
    require_number("profile", options.profile, 0)
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


def print_config(config: Config) -> int:
    """Print a configuration as a params file; return the exit code."""
    print(format_yaml(config_to_dict(config)), end="", flush=True)
    return 0
