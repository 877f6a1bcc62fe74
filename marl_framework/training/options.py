"""Command-line options of the commands that train; does not import PyTorch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_framework.command_line import add_overrides
from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.loading import config_to_dict
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
"""Keys that the options of these names override; in option names `-` may replace `_`."""


@dataclass(frozen=True)
class Start:
    """Options for starting a run."""

    run_name: str | None = None
    """Name of the folder in `logging.directory`; None to build a name from title and time."""
    check: bool = False
    """Whether to only check the configuration."""
    profile: int = 0
    """Number of training steps to profile."""
    resume: bool = False
    """Whether to continue the run with this name, if the run exists."""
    allow_changed: Sequence[str] | None = ()
    """Keys that may differ from the resumed run; None if the command has no such option."""
    archive_earlier: bool = False
    """Whether a new run first moves an existing run with the same name to the archive."""
    init_from: str | None = None
    """Run folder or checkpoint of a team, for the initial weights of a new run."""


# Options ------------------------------------------------------------------------------------


def add_run_options(parser: argparse.ArgumentParser, config: str | None = None) -> None:
    """Add the options of every command that trains a run.

    `config` is the default params file.
    """
    shown = config or "$CONFIG_FILE_PATH, else the mission of --checkpoint, else params.yaml"
    text = f"params file: a path, or a name in params/ (default: {shown})"
    default = config or os.environ.get("CONFIG_FILE_PATH") or None
    _add(parser, "config", "FILE", text, default=default)
    add_overrides(parser)
    text = "folder of this run in logging.directory (default: title and time)"
    _add(parser, "run-name", "NAME", text)
    _flag(parser, "check", "check the configuration and exit")
    _flag(parser, "resume", "continue the run with this name; start a new run if there is none")
    # Defaults, for commands without these options.
    parser.set_defaults(
        print_config=False, profile=None, allow_changed=None, archive_earlier=False, init_from=None
    )


def add_short_forms(parser: argparse.ArgumentParser, names: Iterable[str] = SHORT_FORMS) -> None:
    """Add options of `SHORT_FORMS`, which append to the overrides."""
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
    """Add the options for several runs; `option` is the option that requests them."""
    group = parser.add_argument_group("several runs")
    text = f"with {option}: train N runs at once, each in a process with a share of the cores "
    _add(group, "jobs", "N", f"{text}(default: 1)", type=int)
    group.add_argument(
        "--launcher",
        choices=("local", "slurm"),
        help=f"with {option}: where to train the runs; slurm submits a job for each run, which is "
        "requeued and resumed after pre-emption (default: local)",
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
    text = "first move an existing run with this name to training_history/; ignored when resuming"
    _flag(training, "archive-earlier", text)
    text = "start with the weights of a trained team: a run folder, a checkpoint file or "
    _add(training, "init-from", "RUN_OR_FILE", f"{text}pretrained:student; ignored when resuming")
    text = "profile N training steps with torch.profiler; write profile.json"
    _add(training, "profile", "N", text, type=int)
    text = "train one run per seed, NAME-N with environment.seed=N, and summarise the runs in "
    text += "NAME-seeds.json; with --resume continue the runs"
    _add(training, "seeds", "N,…", text)
    text = "with --seeds: train runs NAME-V-N with each of these values of a key; repeat for "
    _add(training, "vary", "SECTION.KEY=V,…", f"{text}all combinations", **several)
    add_series_options(parser, "--seeds")

    deployment = parser.add_argument_group("deployment")
    text = "the trained team: a checkpoint file, a run folder or pretrained:student"
    _add(deployment, "checkpoint", "RUN_OR_FILE", text)
    text = "number of missions, each over a separate window of the map (default: 1)"
    _add(deployment, "missions", "N", text, type=int)
    _flag(deployment, "html", "also write mission.html, an interactive page of each mission")


def _add(
    parser: argparse._ActionsContainer, name: str, metavar: str, text: str, **more: Any
) -> None:
    parser.add_argument(f"--{name}", metavar=metavar, help=text, **more)


def _flag(parser: argparse._ActionsContainer, name: str, text: str) -> None:
    parser.add_argument(f"--{name}", action="store_true", help=text)


# Checks -------------------------------------------------------------------------------------


def refuse(options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Refuse options on the command line, unless they are None, False or an empty list.

    Raises ConfigError if an option is given; the message is the first such option and the reason.
    """
    for name in names:
        value = getattr(options, name)
        if value is None or value is False or value == []:
            continue
        shown = "" if value is True or isinstance(value, list) else f" {value}"
        option = "set" if name == "overrides" else name.replace("_", "-")
        raise ConfigError(f"--{option}{shown} {reason}")


def require(options: argparse.Namespace, required: Mapping[str, str]) -> None:
    """Check that each given option (key) comes with the option that it requires (value).

    Raises ConfigError if a required option is missing.
    """
    for name, other in required.items():
        if not getattr(options, other):
            refuse(options, [name], f"requires --{other.replace('_', '-')}")


def require_number(name: str, number: int | None, least: int) -> None:
    """Check that the number of an option is at least `least`.

    Raises ConfigError if the number is too low.
    """
    if number is not None and number < least:
        raise ConfigError(f"--{name} {number}: must be {least} or more")


def read_start(options: argparse.Namespace) -> Start:
    """Read and check the options for starting a run.

    Raises ConfigError if a name is invalid or missing, or the checkpoint does not exist.
    """
    if options.run_name is not None:
        check_run_name(options.run_name)
    elif not (options.check or options.print_config):
        require(options, {"resume": "run_name", "archive_earlier": "run_name"})
    if options.init_from is not None and not options.resume:
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


def print_config(config: Config) -> int:
    """Print a configuration as a params file; return the exit code."""
    print(format_yaml(config_to_dict(config)), end="", flush=True)
    return 0
