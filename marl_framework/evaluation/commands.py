"""Command line flights without training: baselines, and deployment over a measured map."""

from __future__ import annotations

import argparse
import errno
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from marl_framework.command_line import warn
from marl_framework.config.model import Config
from marl_framework.device import describe_device
from marl_framework.evaluation import comparison, deployment, local_frame, report
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.folder import RunFolder, not_writable
from marl_framework.runs.start import start_run


def fly_baseline(config: Config, device: torch.device, options: argparse.Namespace) -> int:
    """Evaluate a planner that needs no training; write the results to a run folder.

    With the option `check` of `main`, only validate the configuration.
    """
    name, baselines = config.experiment.policy, config.experiment.baselines
    missions = getattr(baselines, name, config.evaluation).missions  # others have no section
    flights = comparison.prepare(config, device, [name], missions, config.environment.seed)
    if options.check:
        return _report_valid()
    with _created_run(config, device, options) as run:
        start = time.perf_counter()
        records = flights.fly()
        seconds = time.perf_counter() - start
        found = flights.results(records)
        text = report.table_text(found)
        comparison.write(text, found, run.path)
        run.write_summary(
            found["summary"], {"seconds": seconds, **found["timing"]}, found["machine"]
        )
        print(text, end="", flush=True)
        comparison.draw(records, found, run.path)
    print(f"done: {run.summary_file}")
    return 0


def deploy(
    config: Config,
    device: torch.device,
    checkpoint: Checkpoint | None,
    options: argparse.Namespace,
) -> int:
    """Fly windows of a measured map; write beliefs, waypoints and figures to a run folder.

    With the option `check` of `main`, only validate the configuration; with `html`, also write a
    page to watch each mission on.
    """
    flights = deployment.prepare(config, device, options.missions or 1, checkpoint)
    if options.check:
        return _report_valid()
    with _created_run(config, device, options) as run:
        start = time.perf_counter()
        record = flights.fly()
        seconds = time.perf_counter() - start
        missions_flown = flights.write(record, run.path)
        results = {
            "planner": record.planner,
            "checkpoint": None if checkpoint is None else checkpoint.name,
            "coordinate_frame": local_frame.FRAME,
            "coordinate_system": None if flights.place is None else flights.place.system,
            "cell_size_m": config.geometry.cell_size,
            "missions": missions_flown,
        }
        run.write_summary(results, {"seconds": seconds}, {"device": describe_device(device)})
        _warn_of_approaches(missions_flown, config.experiment.constraints.spacing / 2)
        _warn_of_zones(missions_flown)
        flights.draw(record, run.path, options.html)
    print(f"done: {run.summary_file}")
    return 0


def _warn_of_approaches(missions: Sequence[Mapping[str, Any]], least: float) -> None:
    """Print which mission files let two UAVs come nearer than `least` metres."""
    for mission in missions:
        nearest = mission.get("closest_approach")
        if nearest is not None and nearest["metres"] < least:
            first, second = nearest["uavs"]
            print(
                f"warning: {mission['folder']}: UAVs {first} and {second} come within "
                f"{nearest['metres']:.1f} m of each other {nearest['where']}; change the mission "
                "files before you fly them"
            )


def _warn_of_zones(missions: Sequence[Mapping[str, Any]]) -> None:
    """Print which mission files lead through no-fly zones."""
    for mission in missions:
        for way in mission.get("through_zones", ()):
            print(
                f"warning: {mission['folder']}: UAV {way['uav']} flies through a no-fly zone "
                f"{way['where']}; set deployment.home, or change the mission files before you fly "
                "them"
            )


def _report_valid() -> int:
    print("the configuration is valid")
    return 0


@contextmanager
def _created_run(
    config: Config, device: torch.device, options: argparse.Namespace
) -> Iterator[RunFolder]:
    """Create the run folder, print the device and the folder; release it at the end.

    Where it ends before the summary is written the folder goes, so that its name can be used again.

    Raises:
        ConfigError: the folder cannot be written.
    """
    run = start_run(
        config, device, options.run_name, archive_earlier=options.archive_earlier, folders=()
    )
    print(f"{describe_device(device)}\nrun folder: {run.path}", flush=True)
    try:
        yield run
    except BaseException as error:
        if run.summary_file.exists():
            run.write_status("finished")
            warn(f"warning: {run.path} has all results, but not all figures")
        else:
            run.discard()
        if isinstance(error, OSError) and _is_of(run, error):
            raise not_writable(run.path, error) from error
        raise
    else:
        run.write_status("finished")
    finally:
        run.release()


def _is_of(run: RunFolder, error: OSError) -> bool:
    """Return whether an error comes from writing to the folder, not from what flies."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    return full or str(error.filename or "").startswith(str(run.path))
