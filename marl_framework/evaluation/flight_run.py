"""Flights of the command line of `main`, without training, into run folders."""

from __future__ import annotations

import argparse
import errno
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from marl_framework.command_line import warn
from marl_framework.config.model import Config
from marl_framework.device import describe_device
from marl_framework.evaluation import comparison, report
from marl_framework.evaluation.flight import FlightRecord
from marl_framework.runs.folder import RunFolder, not_writable
from marl_framework.runs.start import start_run

Flown = TypeVar("Flown")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def fly_baseline(config: Config, device: torch.device, options: argparse.Namespace) -> int:
    """Evaluate the planner `experiment.policy`; write the results, see `fly_into_run`."""
    name, baselines = config.experiment.policy, config.experiment.baselines
    missions = getattr(baselines, name, config.evaluation).missions  # others have no section
    flights = comparison.prepare(config, device, [name], missions, config.environment.seed)

    def write(records: Mapping[str, FlightRecord], run: RunFolder, seconds: float) -> None:
        results = flights.results(records)
        text = report.table_text(results)
        comparison.write(text, results, run.path)
        timing = {"seconds": seconds, **results["timing"]}
        run.write_summary(results["summary"], timing, results["machine"])
        print(text, end="", flush=True)
        comparison.draw(records, results, run.path)

    return fly_into_run(config, device, options, flights.fly, write)


def fly_into_run(
    config: Config,
    device: torch.device,
    options: argparse.Namespace,
    fly: Callable[[], Flown],
    write: Callable[[Flown, RunFolder, float], None],
) -> int:
    """Fly into a new run folder, discarded on errors before its summary; return the exit code.

    The options are `run_name`, `archive_earlier`, and `check`, which ends before the flight.
    `write` takes records, run and duration [s], and writes data, summary and figures.
    """
    if options.check:
        print("the configuration is valid")
        return 0
    run = start_run(
        config, device, options.run_name, archive_earlier=options.archive_earlier, folders=()
    )
    print(f"{describe_device(device)}\nrun folder: {run.path}", flush=True)
    try:
        start = time.perf_counter()
        flown = fly()
        write(flown, run, time.perf_counter() - start)
        run.write_status("finished")
    except BaseException as error:
        if run.summary_file.exists():
            run.write_status("finished")
            warn(f"warning: {run.path} has all results, but not all figures")
        else:
            run.discard()
        if isinstance(error, OSError) and (
            error.errno in _DISK_ERRORS or str(error.filename or "").startswith(str(run.path))
        ):
            raise not_writable(run.path, error) from error
        raise
    finally:
        run.release()
    print(f"done: {run.summary_file}")
    return 0
