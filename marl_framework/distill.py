"""Distil several teachers into one team: `python -m marl_framework.distill`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from marl_framework.command_line import Parser, as_program, loaded
from marl_framework.config.loading import load_config
from marl_framework.distillation.tasks import with_tasks, worker_runs
from marl_framework.runs.log import RunLog
from marl_framework.training.guard import guarded
from marl_framework.training.options import (
    Start,
    add_print_config,
    add_run_options,
    add_series_options,
    add_short_forms,
    print_config,
    read_start,
    refuse,
    require,
)
from marl_framework.training.series import Launch, read_launch, train_runs


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = Parser(prog="python -m marl_framework.distill", description=__doc__)
    add_run_options(parser, "params_fast.yaml")
    add_short_forms(parser, ["device"])
    add_print_config(parser)
    parser.add_argument(
        "--tasks",
        metavar="FILE",
        help="file of tasks: missions by name, as differences from the params file; sets "
        "distillation.tasks",
    )
    parser.add_argument(
        "--teacher",
        action="append",
        default=[],
        metavar="TASK=TEACHER",
        help="teacher of a task: a run folder, a run of logging.directory, a checkpoint, "
        "pretrained:student or a planner; NAME alone: run NAME-TASK for each task; repeatable",
    )
    workers = parser.add_argument_group("workers")
    workers.add_argument(
        "--workers",
        metavar="FILE",
        help="instead train a team for each task of a file, as run NAME-TASK for --run-name NAME; "
        "with --resume continue the runs",
    )
    workers.add_argument(
        "--init-from",
        metavar="RUN_OR_FILE",
        help="with --workers: initial weights of each training; see main --help",
    )
    add_series_options(parser, "--workers")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 done, 1 failed, 2 bad input or 130 interrupted."""
    options = make_parser().parse_args(arguments)
    return guarded(lambda log: _run(options, log))


def _run(options: argparse.Namespace, log: RunLog) -> int:
    require(options, {"init_from": "workers"})
    start = read_start(options)
    launch = read_launch(options, start, "workers")
    if options.workers is not None:
        return _train_workers(options, start, launch, log)
    given = load_config(options.config, options.overrides)
    config = with_tasks(given, options.tasks, options.teacher)
    if options.print_config:
        return print_config(config)

    # Imported here, because they load PyTorch: help and bad input are reported at once.
    from marl_framework.distillation.trainer import Distiller
    from marl_framework.training.rounds import train_in_rounds

    loaded()
    return train_in_rounds(Distiller, config, start, log)


def _train_workers(options: argparse.Namespace, start: Start, launch: Launch, log: RunLog) -> int:
    refuse(options, ("tasks", "teacher", "print_config"), "cannot be used with --workers")
    require(options, {"workers": "run_name"})
    config = load_config(options.config, options.overrides)
    runs = worker_runs(config, options.workers, options.run_name)
    if not start.check:
        return max(train_runs(launch, config, runs).values(), default=0)

    from marl_framework.training.team import train_team

    loaded()
    return max(train_team(run, start, log) for run in runs.values())


command = partial(as_program, main)
if __name__ == "__main__":
    sys.exit(command())
