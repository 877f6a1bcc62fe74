"""Makes one team of several teachers: `python -m marl_framework.distill`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from marl_framework.command_line import add_jobs, as_program, loaded
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.yaml_text import format_yaml
from marl_framework.distillation.tasks import with_tasks, worker_runs
from marl_framework.runs.guard import guarded
from marl_framework.runs.log import RunLog
from marl_framework.runs.names import check_checkpoint
from marl_framework.training.jobs import check_jobs, train_runs, worst
from marl_framework.training.rounds_command import configured, rounds_parser
from marl_framework.training.seeds import check_free


def _parser() -> argparse.ArgumentParser:
    parser = rounds_parser("distill", __doc__, "params_fast.yaml")
    parser.add_argument(
        "--tasks",
        metavar="FILE",
        help="missions by name, each with what differs from the params file; sets "
        "distillation.tasks",
    )
    parser.add_argument(
        "--teacher",
        action="append",
        default=[],
        metavar="TASK=TEACHER",
        help="who teaches a task: a run folder, a run of logging.directory, a checkpoint, "
        "pretrained:student or a planner; NAME alone: the runs NAME-TASK of all tasks; repeatable",
    )
    parser.add_argument(
        "--workers",
        metavar="FILE",
        help="instead, train a team for each task of a file: NAME-TASK for "
        "--run-name NAME; with --resume go on where it stopped",
    )
    add_jobs(parser, "--workers")
    parser.add_argument(
        "--init-from",
        metavar="RUN_OR_FILE",
        help="with --workers: start each training with the weights of this team, see main",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the complete configuration as a params file and exit",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    return guarded(lambda log: _run(options, log))


def _run(options: argparse.Namespace, log: RunLog) -> int:
    if options.workers is not None:
        return _train_workers(options, log)
    check_jobs(options.jobs, False, "--workers")
    if options.init_from is not None:
        raise ConfigError("--init-from: goes with --workers; a student learns from fresh weights")
    config = with_tasks(configured(options), options.tasks, options.teacher)
    if options.print_config:
        print(format_yaml(config_to_dict(config)), end="", flush=True)
        return 0

    # They load PyTorch: help and bad input come at once.
    from marl_framework.distillation.trainer import Distiller
    from marl_framework.training.rounds import train_in_rounds

    loaded()
    return train_in_rounds(Distiller, config, options, log)


def _train_workers(options: argparse.Namespace, log: RunLog) -> int:
    for name in ("tasks", "teacher", "print_config"):
        if getattr(options, name):
            raise ConfigError(f"--workers: does not go with --{name.replace('_', '-')}")
    if options.run_name is None:
        raise ConfigError("--workers: name the runs with --run-name")
    check_jobs(options.jobs, True, "--workers")
    if options.init_from is not None:
        check_checkpoint("--init-from", options.init_from)
    config = configured(options)
    runs = worker_runs(config, options.workers, options.run_name)
    if not (options.resume or options.check):
        check_free(runs)

    from marl_framework.training.launch import Start, train_on_own_device

    loaded()
    start = Start(options.check, resume=options.resume, init_from=options.init_from)
    train_one = partial(train_on_own_device, start=start)
    codes = train_runs(runs, train_one, log, options.jobs, lambda name, _: f"worker: {name}")
    return worst(codes)


def command() -> int:
    """Run the command line as a program of its own; return its exit code."""
    return as_program(main)


if __name__ == "__main__":
    sys.exit(command())
