"""Compare planners on the same missions: `python -m marl_framework.evaluate`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_framework.command_line import as_program, loaded, warn, writing
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import resolve_config_path, with_changes
from marl_framework.config.parts import LEARNED, PLANNER_NAMES
from marl_framework.distillation.tasks import read_tasks, with_mission
from marl_framework.evaluation.options import MISSIONS, SEED, TASK, read_options, world_overrides
from marl_framework.runs.files import write_json
from marl_framework.runs.history import state_of
from marl_framework.runs.names import checkpoint_file
from marl_framework.training.guard import guarded

# Functions import the modules that load PyTorch: help and bad input are reported at once.
if TYPE_CHECKING:
    from marl_framework.config.model import Config
    from marl_framework.evaluation.comparison import Comparison
    from marl_framework.planners.team import Checkpoint

_REFRESH, _WAIT = 20, 5.0  # with --watch: time until pages reload, and between checks [s]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 done, 1 failed, 2 bad input or 130 interrupted."""
    options = read_options(__doc__, arguments)
    return guarded(lambda _: _run(options), again="then run the command again")


def _run(options: argparse.Namespace) -> int:
    if options.suite is not None:
        _fly_suite(options)
    else:
        (_compare if options.watch is None else _watch)(options)
    return 0


def _fly_suite(options: argparse.Namespace) -> None:
    from marl_framework.device import describe_device, resolve_device
    from marl_framework.evaluation import suite, suite_results
    from marl_framework.evaluation.worlds import MISSIONS, SEED, chosen_worlds
    from marl_framework.planners.team import load_team

    loaded()
    names, named_runs = options.policies or (suite.POLICIES, {})
    if named_runs:
        raise ConfigError("--policies NAME=RUN cannot be combined with --suite; use --checkpoint")
    runs = [] if options.checkpoint is None else options.checkpoint.split(",")
    teams = [load_team(run.strip()) for run in runs]
    device = resolve_device(options.device or "auto")
    flights = suite.Suite(
        options.suite,
        chosen_worlds(options.suite, options.maps, options.only),
        suite.flyers(names, teams, options.overrides),
        MISSIONS if options.missions is None else options.missions,
        SEED if options.seed is None else options.seed,
        device,
        Path(options.out),
    )
    flights.check()
    out = _output_folder(options.out)
    print(describe_device(device), flush=True)
    with writing(out):
        try:
            results = suite_results.results(flights, flights.fly())
        except KeyboardInterrupt:
            warn("the suite is incomplete; run the same command again to continue")
            raise
        text = suite_results.table(results)
        write_json(out / "suite.json", results)
        (out / "table.txt").write_text(text, encoding="utf-8")
    print(text, end="")
    print(out / "suite.json", out / "table.txt", sep="\n")


def _watch(options: argparse.Namespace) -> None:
    run = Path(options.watch)
    if not os.path.isdir(run):
        raise ConfigError(f"--watch {run} is not a folder; give a run folder")
    options.policies = options.policies or ([LEARNED], {})
    options.out, options.html = options.out or str(run / "watch"), True
    for checkpoint in latest_teams(run):
        options.checkpoint = str(checkpoint)
        _compare(options)
        if state_of(run) == "in training":
            print(f"watching {run}; press Ctrl-C to stop", flush=True)
    print(f"{run} is not in training ({state_of(run)}); this was its latest team")


def latest_teams(run: Path, wait: Callable[[float], None] = time.sleep) -> Iterator[Path]:
    """Yield the last checkpoint of a run after each change, until the training ends.

    Raises ConfigError if the run is not in training and has no checkpoint.
    """
    last, seen = run / "checkpoints" / "last.pt", None
    while True:
        training = state_of(run) == "in training"  # read first, to see the final checkpoint, too
        newest = last.stat().st_mtime_ns if last.is_file() else None
        if newest is not None and newest != seen:
            seen = newest
            yield last
        elif training:
            wait(_WAIT)
        elif seen is None:
            raise ConfigError(
                f"--watch {run} has no checkpoint and is not in training; give another run folder"
            )
        else:
            return


def _compare(options: argparse.Namespace) -> None:
    if options.policies is None:
        raise ConfigError(f"--policies is missing; choose from {', '.join(PLANNER_NAMES)}")
    worlds: Mapping[str, Any] = world_overrides(options.agents, options.communication)
    if options.tasks is not None:
        worlds = read_tasks(options.tasks)
    if options.config is not None:
        resolve_config_path(options.config)
    runs = [run for world in worlds for run in _runs_in(world, options).values()]
    for run in (*([] if options.checkpoint is None else [options.checkpoint]), *runs):
        checkpoint_file(run)

    from marl_framework.device import describe_device
    from marl_framework.evaluation.comparison import fly_and_write

    loaded()
    prepared = _prepare(options, worlds)
    out = _output_folder(options.out)
    print(describe_device(next(iter(prepared.values())).device), flush=True)
    refresh = None if options.watch is None else _REFRESH
    with writing(out):
        text, files = fly_and_write(prepared, out, not options.no_figures, options.html, refresh)
    print(text, end="")
    print(*sorted(files), sep="\n")


def _runs_in(world: str, options: argparse.Namespace) -> dict[str, str]:
    _, runs = options.policies
    return runs if options.tasks is None else {n: r.replace(TASK, world) for n, r in runs.items()}


def _prepare(options: argparse.Namespace, worlds: Mapping[str, Any]) -> dict[str, Comparison]:
    """Prepare the flights in each world; `worlds`: overrides, or keys of a task, by world."""
    from marl_framework.device import resolve_device
    from marl_framework.evaluation import comparison
    from marl_framework.planners.team import find_checkpoint, load_team

    names, seed = options.policies[0], SEED if options.seed is None else options.seed
    load, checkpoint = cache(load_team), None
    if options.checkpoint is not None:  # without `learned` only the checkpoint's mission is used
        checkpoint = (load if LEARNED in names else find_checkpoint)(options.checkpoint)
    prepared: dict[str, Comparison] = {}
    for world, changes in worlds.items():
        teams = {name: load(run) for name, run in _runs_in(world, options).items()}
        configure = partial(_configuration, options, world, changes)
        config = configure(checkpoint or next(iter(teams.values()), None))
        if LEARNED in names and checkpoint is None:
            raise ConfigError("--policies learned requires a trained team; add --checkpoint")
        if not prepared:
            device = resolve_device(config.compute.device)
            if options.config is None:
                first = {} if checkpoint is None else {checkpoint.name: checkpoint}
                missions = {name: configure(team) for name, team in (first | teams).items()}
                comparison.print_other_missions(missions)
        for area, one in comparison.by_area(config).items():
            name = "_".join(filter(None, (world, area)))
            if name in prepared:
                raise ConfigError(f"{options.tasks}: two worlds are named {name}; rename a task")
            prepared[name] = comparison.prepare(
                one, device, names, options.missions or MISSIONS, seed, checkpoint,
                not options.sample, teams,
            )  # fmt: skip
    return prepared


def _configuration(
    options: argparse.Namespace, world: str, changes: Any, team: Checkpoint | None
) -> Config:
    """Return the configuration of a team in a world; for `changes` see `worlds` in `_prepare`."""
    from marl_framework.planners.team import mission_config

    overrides = [*(options.terrain or ()), *options.overrides]
    if options.device is not None:
        overrides.append(f"compute.device={options.device}")
    if options.tasks is None:
        return mission_config(options.config, [*overrides, *changes], team)
    config = mission_config(options.config, overrides, team)
    return with_mission(config, with_changes(config, changes, f"{options.tasks}: {world}"), world)


def _output_folder(name: str) -> Path:
    """Create a folder and check that files can be written there."""
    if not name:
        raise ConfigError("--out is empty; give a folder")
    out = Path(name)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    return out


command = partial(as_program, main)
if __name__ == "__main__":
    sys.exit(command())
