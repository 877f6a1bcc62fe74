"""What the command lines of trainings in rounds share; PyTorch is loaded later."""

from __future__ import annotations

import argparse

from marl_framework.command_line import Parser, add_overrides
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config, resolve_config_path
from marl_framework.config.model import Config
from marl_framework.runs.names import check_run_name


def rounds_parser(program: str, description: str | None, config: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all such trainings.

    Args:
        program: name of the module.
        description: what it does.
        config: params file by default.
    """
    parser = Parser(prog=f"python -m marl_framework.{program}", description=description)
    parser.add_argument(
        "--config",
        default=config,
        metavar="FILE",
        help=f"params file: a path, or a name in params/ (default: {config})",
    )
    add_overrides(parser)
    parser.add_argument("--run-name", metavar="NAME", help="folder in logging.directory")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; sets compute.device")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument(
        "--resume", action="store_true", help="continue the run of this name, or start it"
    )
    return parser


def configured(options: argparse.Namespace) -> Config:
    """Return the configuration that the options of `rounds_parser` ask for.

    Raises:
        ConfigError: it is invalid, or the name of the run is.
    """
    overrides = list(options.overrides)
    if options.device is not None:
        overrides.append(f"compute.device={options.device}")
    config = load_config(resolve_config_path(options.config), overrides)
    if options.run_name is not None:
        check_run_name(options.run_name)
    elif options.resume:
        raise ConfigError("--resume: name the run to continue with --run-name")
    return config
