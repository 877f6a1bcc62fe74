"""Compares planners on the same missions: `python -m marl_framework.evaluate`."""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from marl_framework.command_line import (
    BAD_INPUT,
    INTERRUPTED,
    Parser,
    add_checkpoint,
    add_overrides,
    as_program,
    loaded,
    plain_warnings,
)
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.parts import LEARNED, PLANNER_NAMES
from marl_framework.distillation.tasks import read_tasks, with_mission
from marl_framework.evaluation import options as asked
from marl_framework.runs.files import write_json
from marl_framework.runs.log import Screen
from marl_framework.runs.names import checkpoint_file

# Modules that load PyTorch are imported where they are used: help and bad input come at once.
if TYPE_CHECKING:
    from marl_framework.config.model import Config
    from marl_framework.evaluation import comparison
    from marl_framework.planners.team import Checkpoint

_SEED, _MISSIONS = 10001, 50
_FIXED = "the worlds of --suite are fixed"
_NOT_IN_A_SUITE = {
    **dict.fromkeys(("config", "terrain", "agents", "communication", "tasks"), _FIXED),
    "sample": "in --suite a team takes its most probable actions",
    "html": "--suite draws no pages",
    "watch": "--suite flies teams whose training is over, see --checkpoint",
}
"""Why an option has no place beside --suite."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m marl_framework.evaluate", description=__doc__)
    add = parser.add_argument
    add(
        "--suite",
        choices=("standard", "teams"),
        help="fly the fixed worlds of docs/suite.md; --policies has a default, and --checkpoint "
        "may name runs of several training seeds",
    )
    add("--only", metavar="WORLD,…", help="with --suite: these worlds")
    add("--maps", metavar="NAME=PATH,…", help="with --suite: measured maps, a world each")
    add(
        "--policies",
        metavar="NAME,…",
        help=f"planners to compare: {', '.join(PLANNER_NAMES)} (the oracle sees the true map), or "
        "your own as module.Class; NAME=RUN is a trained team, and learned=RUN has the name of its "
        "run; differences are taken to the best of information_gain, coverage and random",
    )
    add_checkpoint(parser)
    add(
        "--config",
        metavar="FILE",
        help="params file of the missions (default: the checkpoint's configuration); the "
        "networks keep their inputs and widths",
    )
    add(
        "--terrain",
        metavar="KIND",
        help=f"terrain to fly over: {', '.join(asked.TERRAIN_NAMES)}, raster:PATH, or your own as "
        "module.Class (default: the configuration's)",
    )
    add("--agents", metavar="N,…", help="team sizes; each flies with each range")
    add("--communication", metavar="M,…", help="radio ranges [m]; inf: all UAVs hear each other")
    add(
        "--tasks",
        metavar="FILE",
        help="fly the missions of each task of a file, see docs/distillation.md; "
        f"{asked.TASK} in a RUN stands for the task's name",
    )
    add_overrides(
        parser,
        "override a key of the configuration; repeatable; with --suite those of "
        "experiment.baselines.search, whose predictor may name several runs, RUN,…",
    )
    add("--missions", type=int, help=f"number of missions (default: {_MISSIONS})")
    add(
        "--seed",
        type=int,
        help=f"seed of the missions (default: {_SEED}, with --suite the suite's); development "
        "uses seeds below 20000",
    )
    add(
        "--sample",
        action="store_true",
        help="sample the trained team's actions (default: the most probable ones)",
    )
    add("--device", help="auto, cpu, cuda or cuda:N; sets compute.device")
    add("--no-figures", action="store_true", help="write no figures")
    add("--html", action="store_true", help="write mission.html, the first mission to watch")
    add(
        "--watch",
        metavar="RUN",
        help="evaluate the latest team of a training run again whenever it is newer, with --html, "
        "until the training ends",
    )
    add(
        "--out",
        metavar="DIR",
        help="folder for the results; it may hold earlier ones, which new ones of the same name "
        "replace (with --watch: RUN/watch)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 0 done, 2 bad input, 130 interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.out is None and options.watch is None:
        parser.error("the following arguments are required: --out")
    try:
        with plain_warnings():
            if options.suite is not None:
                _run_suite(options)
            elif options.watch is not None:
                _watch(options)
            else:
                _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        again = "; the same command continues" if options.suite is not None else ""
        print(f"interrupted; results are incomplete{again}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _run_suite(options: argparse.Namespace) -> None:
    """Fly a suite, or what is missing of it."""
    for option, reason in _NOT_IN_A_SUITE.items():
        value = getattr(options, option)
        if value is not None and value is not False:
            raise ConfigError(f"--{option}: {reason}; leave it out")

    from marl_framework.device import describe_device, resolve_device
    from marl_framework.evaluation import suite, suite_statistics
    from marl_framework.evaluation.worlds import MISSIONS, SEED, chosen_worlds
    from marl_framework.planners.team import load_team

    loaded()
    missions = MISSIONS if options.missions is None else options.missions
    seed = SEED if options.seed is None else options.seed
    asked.check_numbers(missions, seed)
    names, text = list(suite.POLICIES), options.policies
    if text is not None:
        names = asked.planner_names(text, text.split(","))
    runs = [] if options.checkpoint is None else options.checkpoint.split(",")
    teams = [load_team(run.strip()) for run in runs]
    device = resolve_device(options.device or "auto")
    flights = suite.Suite(
        options.suite,
        chosen_worlds(options.suite, options.maps, options.only),
        suite.flyers(names, teams, options.overrides),
        missions,
        seed,
        device,
        options.device,
        Path(options.out),
    )
    flights.check()
    out = _output_folder(options.out)
    print(describe_device(device), flush=True)
    try:
        found = suite.results(flights, flights.fly())
        text = suite_statistics.table(found)
        write_json(out / "suite.json", found)
        (out / "table.txt").write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_writable(out, error) from error
    print(text, end="")
    print(out / "suite.json", out / "table.txt", sep="\n")


def _watch(options: argparse.Namespace) -> None:
    """Evaluate the latest team of a training run until it ends."""
    from marl_framework.evaluation.watching import latest_teams

    run = Path(options.watch)
    if options.checkpoint is not None:
        raise ConfigError("--checkpoint: --watch names the team; leave one of them out")
    if not run.is_dir():
        raise ConfigError(f"--watch {run}: is no run folder")
    options.policies = options.policies or LEARNED
    options.out, options.html = options.out or str(run / "watch"), True
    for checkpoint in latest_teams(run):
        options.checkpoint = str(checkpoint)
        _run(options)
        print(f"watching {run}; Ctrl-C ends", flush=True)


def _run(options: argparse.Namespace) -> None:
    for name in ("only", "maps"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name}: it needs --suite")
    if options.policies is None:
        raise ConfigError(
            f"--policies: name the planners to compare, of {', '.join(PLANNER_NAMES)}"
        )
    names, runs = asked.policies(options.policies)
    options.seed = _SEED if options.seed is None else options.seed
    options.missions = _MISSIONS if options.missions is None else options.missions
    asked.check_numbers(options.missions, options.seed)
    worlds = _worlds(options)
    from marl_framework.config.loading import resolve_config_path

    if options.config is not None:
        resolve_config_path(options.config)
    if options.checkpoint is not None:
        checkpoint_file(options.checkpoint)
    for world in worlds:
        for run in _runs_in(world, runs, options).values():
            checkpoint_file(run)

    from marl_framework.device import describe_device
    from marl_framework.evaluation.comparing import fly_and_write

    loaded()
    prepared = _prepare(options, names, runs, worlds)  # or an error
    device = next(iter(prepared.values())).device
    out = _output_folder(options.out)
    print(describe_device(device), flush=True)
    try:
        text, files = fly_and_write(prepared, out, options)
    except OSError as error:
        raise _not_writable(out, error) from error
    print(text, end="")
    print(*sorted(files), sep="\n")


def _worlds(options: argparse.Namespace) -> dict[str, Any]:
    """Return what each world changes, by its name: overrides, or the keys of a task."""
    if options.tasks is None:
        return dict(asked.team_and_radio_overrides(options.agents, options.communication))
    for name in ("agents", "communication", "terrain"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name}: --tasks says what is flown; leave one of them out")
    return dict(read_tasks(options.tasks))


def _runs_in(world: str, runs: Mapping[str, str], options: argparse.Namespace) -> dict[str, str]:
    """Return the runs of the teams that fly a world."""
    if options.tasks is None:
        return dict(runs)
    return {name: run.replace(asked.TASK, world) for name, run in runs.items()}


def _prepare(
    options: argparse.Namespace,
    names: list[str],
    runs: Mapping[str, str],
    worlds: Mapping[str, Any],
) -> dict[str, comparison.Comparison]:
    """Return the flights in each world, by its name."""
    from marl_framework.device import resolve_device
    from marl_framework.evaluation import comparison
    from marl_framework.planners.team import find_checkpoint, load_team

    find = functools.cache(load_team)
    checkpoint = None
    if options.checkpoint is not None:  # any, where its mission alone is wanted
        checkpoint = (find if LEARNED in names else find_checkpoint)(options.checkpoint)
    teams = {
        world: {name: find(run) for name, run in _runs_in(world, runs, options).items()}
        for world in worlds
    }
    configs = {
        world: _configuration(
            options, world, changes, checkpoint or next(iter(teams[world].values()), None)
        )
        for world, changes in worlds.items()
    }
    if options.config is None:
        world, changes = next(iter(worlds.items()))
        flying = {} if checkpoint is None else {checkpoint.name: checkpoint}
        _tell_other_missions(
            {
                name: _configuration(options, world, changes, team)
                for name, team in (flying | teams[world]).items()
            }
        )
    device = resolve_device(next(iter(configs.values())).compute.device)
    return {
        world: comparison.prepare(
            config, device, names, options.missions, options.seed, checkpoint,
            not options.sample, teams[world],
        )
        for world, config in configs.items()
    }  # fmt: skip


def _tell_other_missions(own: Mapping[str, Config]) -> None:
    """Say which teams learned another mission than the first one, whose mission all fly.

    Args:
        own: what each team would fly by itself, with the options of the command line.
    """
    from marl_framework.planners.team import other_mission

    teams = [*own.items()]
    for name, config in teams[1:]:
        first, flown = teams[0]
        if differing := other_mission(flown, config):
            keys = ", ".join(differing[:4]) + (", …" if len(differing) > 4 else "")
            print(f"all fly the mission of {first}, and {name} learned another one: {keys}")


def _configuration(
    options: argparse.Namespace, world: str, changes: Any, team: Checkpoint | None
) -> Config:
    """Return a world as a team sees it.

    Args:
        options: of the command line.
        world: its name.
        changes: see `_worlds`.
        team: that says how it is seen, if one flies.
    """
    from marl_framework.planners.team import mission_config

    overrides = [*asked.terrain_overrides(options.terrain), *options.overrides]
    if options.device is not None:
        overrides.append(f"compute.device={options.device}")
    if options.tasks is None:
        return mission_config(options.config, [*overrides, *changes], team)
    config = mission_config(options.config, overrides, team)
    return with_mission(config, with_changes(config, changes, f"{options.tasks}: {world}"), world)


def _output_folder(name: str) -> Path:
    if not name:
        raise ConfigError("--out: name a folder")
    out = Path(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass  # it can be written
    except (OSError, ValueError) as error:
        raise _not_writable(out, error) from error
    return out


def _not_writable(out: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"--out {out}: cannot be written: {reason}; name a folder of yours")


def command() -> int:
    """Run the command line as a program of its own; return its exit code."""

    def to_the_end() -> int:
        streams = (cast(TextIO, Screen(stream)) for stream in (sys.stdout, sys.stderr))
        sys.stdout, sys.stderr = streams  # results are written also where nobody reads any more
        return main()

    return as_program(to_the_end)


if __name__ == "__main__":
    sys.exit(command())
