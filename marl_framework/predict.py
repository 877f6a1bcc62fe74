"""Trains the search planner's map predictor: `python -m marl_framework.predict`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from marl_framework.command_line import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    Parser,
    add_overrides,
    as_program,
    describe_os_error,
    loaded,
    plain_warnings,
)
from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import check_run_name
from marl_framework.runs.log import RunLog


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m marl_framework.predict", description=__doc__)
    parser.add_argument(
        "--config",
        default="params_predict.yaml",
        metavar="FILE",
        help="params file: a path, or a name in params/ (default: params_predict.yaml)",
    )
    add_overrides(parser)
    parser.add_argument("--run-name", metavar="NAME", help="folder in logging.directory")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; sets compute.device")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument(
        "--resume", action="store_true", help="continue the run of this name, or start it"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        with RunLog() as log, plain_warnings():
            return _run(options, log)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        print(describe_os_error(error), file=sys.stderr)
        return FAILED


def _run(options: argparse.Namespace, log: RunLog) -> int:
    from marl_framework.config.loading import load_config, resolve_config_path

    overrides = list(options.overrides)
    if options.device is not None:
        overrides.append(f"compute.device={options.device}")
    config = load_config(resolve_config_path(options.config), overrides)
    if options.run_name is not None:
        check_run_name(options.run_name)
    elif options.resume:
        raise ConfigError("--resume: name the run to continue with --run-name")

    # It loads PyTorch: help and bad input come at once.
    from marl_framework.prediction.launch import train

    loaded()
    return train(config, options.run_name, check=options.check, resume=options.resume, log=log)


def command() -> int:
    """Run the command line as a program of its own; return its exit code."""
    return as_program(main)


if __name__ == "__main__":
    sys.exit(command())
