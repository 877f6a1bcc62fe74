"""Compare planners on the same missions and write the results."""

from __future__ import annotations

import argparse
import errno
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress

from marl_framework.command_line import warn
from marl_framework.config import types
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.device import describe_device
from marl_framework.evaluation import report
from marl_framework.evaluation.figures import (
    curves_figure,
    film_strip,
    mission_figure,
    mission_gif,
    worlds_figure,
)
from marl_framework.evaluation.flight import FlightRecord, evaluate, warn_without_interest
from marl_framework.evaluation.mission_page import MissionPage
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.completion import MapCompletion, make_completion
from marl_framework.planners import Decision, Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint, other_mission, with_team
from marl_framework.runs.files import write_json
from marl_framework.runs.folder import RunFolder, describe_environment, not_writable, start_run

SPLIT = "test"
_BATCH_BYTES = 2**30  # memory budget of a batch of missions
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

Flown = TypeVar("Flown")

Records = Mapping[str, FlightRecord]  # records by policy name


class _Counted:
    """A planner whose decisions are counted."""

    def __init__(self, planner: Planner, count: Callable[[], object]) -> None:
        self.name, self._planner, self._count = planner.name, planner, count

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        decision = self._planner.act(state, generator)
        self._count()
        return decision


@dataclass(frozen=True)
class Comparison:
    """Planners and the missions that all of them fly."""

    environments: Mapping[str, MissionEnvironment]
    """Environment of each planner: the same missions, with the observations that it needs."""
    planners: Mapping[str, Planner]
    missions: int
    """Number of missions that each planner flies."""
    seed: int
    settings: Mapping[str, Any]
    """Settings written to `results.json`."""
    device: torch.device
    completion: MapCompletion | None
    """Completes the final beliefs of all planners; None for no completed maps."""

    def fly(self) -> dict[str, FlightRecord]:
        """Fly all missions with each planner; print what they are, and each planner's time.

        In a terminal, a bar shows the moves of the planner that flies.
        """
        records = {}
        print(f"missions: {describe_missions(next(iter(self.environments.values())))}", flush=True)
        for name, planner in self.planners.items():
            start, env = time.perf_counter(), self.environments[name]
            with Progress(
                console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
            ) as bar:
                batches = -(-self.missions // env.num_envs)
                task = bar.add_task(name, total=batches * env.episode_length)
                counted = _Counted(planner, partial(bar.advance, task))
                record = evaluate(
                    env, counted, self.missions, self.seed, completion=self.completion
                )
            records[name] = replace(record, planner=name)
            seconds = time.perf_counter() - start
            print(f"{name}: {self.missions} missions in {seconds:.1f} s", flush=True)
        warn_without_interest(record.metrics["roi_entropy"][:, 0])
        return records


def describe_missions(env: MissionEnvironment) -> str:
    """Return terrain, team, radio and area of missions; several values are drawn from."""

    def listed(values: object) -> str:
        return "/".join(f"{each:g}" for each in types.choices(values))

    config, cells = env.config, env.camera.shape
    area, experiment = config.environment, config.experiment
    return ", ".join(
        (
            "/".join(config.sensor.simulation.kinds),
            f"{listed(experiment.missions.n_agents)} UAVs",
            f"{listed(tuple(budget + 1 for budget in config.missions.budgets))} moves",
            f"radio {listed(experiment.uav.communication_range)} m",
            f"{area.x_dim:g} m x {area.y_dim:g} m of {cells[0]} x {cells[1]} cells",
        )
    )


def prepare(
    config: Config,
    device: torch.device,
    names: list[str],
    missions: int,
    seed: int,
    checkpoint: Checkpoint | None = None,
    greedy: bool = True,
    teams: Mapping[str, Checkpoint] | None = None,
) -> Comparison:
    """Create the environment and the planners, so that bad input fails before any flight.

    `names`: planners for `make_planner`, and names in `teams`. `checkpoint`: team for `learned`.
    `greedy`: whether trained teams take the most probable actions instead of sampling. Raises
    ConfigError if a planner, the terrain or the map predictor cannot be created.
    """
    teams = teams or {}
    batch = batch_size(config, missions)
    settings = {
        "policies": names,
        "missions": missions,
        "seed": seed,
        "split": SPLIT,
        "batch": batch,
        "greedy": greedy,
        "checkpoint": None if checkpoint is None else checkpoint.name,
        "teams": {name: team.name for name, team in teams.items()},
        "training_step": None if checkpoint is None else checkpoint.payload.get("training_step"),
        "terrain": list(config.sensor.simulation.kinds),
        "agents": config.experiment.missions.n_agents,
        "communication_range": config.experiment.uav.communication_range,
        "configuration": config_to_dict(config),
    }
    shared = MissionEnvironment(config, batch, device, SPLIT)
    environments = dict.fromkeys(names, shared)
    for name, team in teams.items():
        environments[name] = MissionEnvironment(with_team(config, team), batch, device, SPLIT)
    planners = {}
    for name in names:
        kind, team_checkpoint = LEARNED if name in teams else name, teams.get(name, checkpoint)
        planners[name] = make_planner(kind, environments[name], team_checkpoint, greedy)
    completion = make_completion(config, shared.lattice)
    return Comparison(environments, planners, missions, seed, settings, device, completion)


def batch_size(config: Config, missions: int) -> int:
    """Return a batch size that makes few, equal batches within a fixed memory budget."""
    rows, cols = config.geometry.map_shape
    maps = config.missions.most_agents + 10  # per mission: beliefs and work arrays, float32
    largest = max(1, _BATCH_BYTES // (4 * maps * rows * cols))
    return -(-missions // -(-missions // largest))


def by_area(config: Config) -> dict[str, Config]:
    """Return the configuration of each area by name; a single area has no name."""
    if len(config.areas) == 1:
        return {"": config.areas[0]}
    sides = [(area.environment.x_dim, area.environment.y_dim) for area in config.areas]
    names = (f"area_{number}_{x:g}x{y:g}" for number, (x, y) in enumerate(sides, 1))
    return dict(zip(names, config.areas, strict=True))


def print_other_missions(own: Mapping[str, Config]) -> None:
    """Print which teams were trained for a mission other than that of the first one."""
    (first, flown), *teams = own.items()
    for name, config in teams:
        if differing := other_mission(flown, config):
            keys = ", ".join(differing[:4]) + (", …" if len(differing) > 4 else "")
            print(f"all fly the mission of {first}; {name} was trained for another one: {keys}")


def fly_and_write(
    prepared: Mapping[str, Comparison],
    out: Path,
    figures: bool,
    html: bool = False,
    refresh: int | None = None,
) -> tuple[str, list[Path]]:
    """Fly the comparison in each world; write results, figures and pages into `out`.

    With several worlds, each has a subfolder for its figures. `refresh`: see `MissionPage`. Returns
    the tables as text, and the files.
    """
    several = len(prepared) > 1
    tables: list[str] = []
    worlds: list[dict[str, Any]] = []
    drawings: list[Path] = []
    for name, flights in prepared.items():
        if several:
            print(name, flush=True)
        records = flights.fly()
        results = report.results(records, flights.settings, describe_environment(flights.device))
        text = report.table_text(results)
        if several:
            tables.append(f"{name}\n{text}")
            worlds.append({"name": name, **results})
            text = "\n".join([*tables, report.as_text(report.overview(worlds))])
        files = write(text, {"combinations": worlds} if several else results, out)
        folder = out / name if several else out
        if figures or html:
            folder.mkdir(exist_ok=True)
        if figures:
            drawings += draw(records, results, folder)
        if html:
            drawings.append(folder / "mission.html")
            MissionPage(records, 0, refresh).write(drawings[-1])
    if several and figures:
        drawings.append(out / "worlds.png")
        worlds_figure(worlds, drawings[-1])
    return text, [*files, *drawings]


def write(text: str, results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the table to `table.txt` and the results to `results.json`; return the files."""
    files = [folder / "results.json", folder / "table.txt"]
    write_json(files[0], results)
    files[1].write_text(text, encoding="utf-8")
    return files


def draw(records: Records, results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw curves, each policy's first mission, and the first policy's GIF; return the files."""
    files = [folder / "curves.png"]
    curves_figure(results, files[0])
    for name, record in records.items():
        files += [folder / f"mission_{name}.png", folder / f"film_{name}.png"]
        mission_figure(record, 0, files[-2])
        film_strip(record, 0, files[-1])
    name, record = next(iter(records.items()))
    files.append(folder / f"mission_{name}.gif")
    mission_gif(record, 0, files[-1])
    return files


def fly_baseline(config: Config, device: torch.device, options: argparse.Namespace) -> int:
    """Evaluate the planner `experiment.policy` and write the results; see `fly_into_run`."""
    name, baselines = config.experiment.policy, config.experiment.baselines
    # Planners without a section in `baselines` fly `evaluation.missions`.
    missions = getattr(baselines, name, config.evaluation).missions
    flights = prepare(config, device, [name], missions, config.environment.seed)

    def finish(records: Records, run: RunFolder, seconds: float) -> None:
        results = report.results(records, flights.settings, describe_environment(device))
        text = report.table_text(results)
        write(text, results, run.path)
        timing = {"seconds": seconds, **results["timing"]}
        run.write_summary(results["summary"], timing, results["machine"])
        print(text, end="", flush=True)
        draw(records, results, run.path)

    return fly_into_run(config, device, options, lambda _: flights.fly(), finish)


def fly_into_run(
    config: Config,
    device: torch.device,
    options: argparse.Namespace,
    fly: Callable[[RunFolder], Flown],
    write: Callable[[Flown, RunFolder, float], None],
    record: str = "",
) -> int:
    """Fly and write into a new run folder; return the exit code.

    If an error occurs before the summary is written, the folder is discarded, unless `fly` has
    written the file `record` into it. Options: `run_name`, `archive_earlier`, and `check`, which
    only validates the configuration. `fly` takes the run folder. `write` takes records, run folder
    and duration [s]; it writes data, summary, figures.
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
        flown = fly(run)
        write(flown, run, time.perf_counter() - start)
        run.write_status("finished")
    except BaseException as error:
        if run.summary_file.exists():
            run.write_status("finished")
            warn(f"warning: {run.path} has all results, but not all figures")
        elif record and (run.path / record).exists():
            warn(f"warning: {run.path} has the record of the flight, but not all results")
            with suppress(OSError):  # the disk may be full
                run.write_status("failed")
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
