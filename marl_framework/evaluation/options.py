"""Options of `python -m marl_framework.evaluate`, and their checks. Does not import PyTorch."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from marl_framework.command_line import Parser, add_checkpoint, add_overrides
from marl_framework.config.errors import ConfigError
from marl_framework.config.named_maps import find_map
from marl_framework.config.parts import LEARNED, PLANNER_NAMES, TERRAINS
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.runs.names import PRETRAINED, check_run_name

SEED, MISSIONS = 10001, 50
"""Defaults of a comparison; suites have their own defaults."""
_RASTER = "raster:"
_TERRAINS = (*(name for name in TERRAINS if name != "raster"), "mixed")
TASK = "{task}"
"""Placeholder for the task's name in run names."""
_CONFLICTS = {
    "suite": ("config", "terrain", "agents", "communication", "tasks", "sample", "html", "watch"),
    "tasks": ("terrain", "agents", "communication"),
    "watch": ("checkpoint",),
}
"""Options that cannot be combined with the option given by the key."""


def read_options(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exit with code 2 for invalid arguments or combinations."""
    parser = _make_parser(description)
    options = parser.parse_args(arguments)
    if options.out is None and options.watch is None:
        parser.error("the following arguments are required: --out")

    def given(names: Iterable[str]) -> list[str]:
        return [name for name in names if getattr(options, name) not in (None, False)]

    for name in given(_CONFLICTS):
        for other in given(_CONFLICTS[name]):
            parser.error(f"--{other} cannot be combined with --{name}; remove one of the two")
    if options.suite is None:
        for name in given(("only", "maps")):
            parser.error(f"--{name} requires --suite")
        checkpoint = options.checkpoint or ""
        if "," in checkpoint and not os.path.exists(checkpoint):
            teams = ",".join(f"{LEARNED}={run.strip()}" for run in checkpoint.split(","))
            parser.error(
                f"--checkpoint {checkpoint}: several checkpoints require --suite; without it, "
                f"compare teams with --policies {teams}"
            )
    return options


def _make_parser(description: str | None) -> Parser:
    parser = Parser(prog="python -m marl_framework.evaluate", description=description)
    add_checkpoint(parser)
    add = parser.add_argument
    add(
        "--policies",
        type=_option(read_policies),
        metavar="NAME,…",
        help=f"planners to compare: {', '.join(PLANNER_NAMES)} (the oracle sees the true map), or "
        "your own as module.Class; NAME=RUN adds a run's team as NAME, learned=RUN under the run's "
        "name; the reference is the best of information_gain, coverage and random",
    )
    meaning = "sample the trained team's actions (default: the most probable ones)"
    add("--sample", action="store_true", help=meaning)
    # Missions
    meaning = "params file of the missions (default: the checkpoint's configuration)"
    add("--config", metavar="FILE", help=meaning)
    add(
        "--terrain",
        type=_option(terrain_overrides),
        metavar="KIND",
        help=f"terrain: {', '.join(_TERRAINS)}, raster:PATH, data:NAME (a named map), or your own "
        "as module.Class (default: the configuration's)",
    )
    sizes = _numbers("different team sizes such as 2,4,8", least=1, several=True)
    meaning = "team sizes; each is combined with each radio range"
    add("--agents", type=sizes, metavar="N,…", help=meaning)
    ranges = _numbers("different ranges [m] such as 0,25,inf", float, several=True)
    meaning = "radio ranges [m]; with inf all UAVs hear each other"
    add("--communication", type=ranges, metavar="M,…", help=meaning)
    meaning = f"fly the missions of each task in a file; {TASK} in a RUN becomes the task's name"
    add("--tasks", metavar="FILE", help=meaning)
    add_overrides(
        parser,
        "override a key of the configuration; repeatable; with --suite only keys of "
        "experiment.baselines.search, where predictor may be several runs: RUN,…",
    )
    number = _numbers("a number of missions, 1 or more", least=1)
    add("--missions", type=number, help=f"number of missions (default: {MISSIONS})")
    add(
        "--seed",
        type=_numbers(f"a whole number from 0 to {MAX_SEED - 1}", most=MAX_SEED - 1),
        help=f"seed of the missions (default: {SEED}; with --suite the suite's own); use seeds "
        "below 20000 for development",
    )
    add("--device", help="auto, cpu, cuda or cuda:N; sets compute.device")
    # Suites, files and figures
    meaning = "fly the fixed worlds of docs/suite.md; --checkpoint may then be several runs: RUN,…"
    add("--suite", choices=("standard", "teams", "rough"), help=meaning)
    add("--only", metavar="WORLD,…", help="with --suite: only these worlds")
    add("--maps", metavar="NAME=PATH,…", help="with --suite: measured maps, one world each")
    add("--no-figures", action="store_true", help="write no figures")
    meaning = "write mission.html, an interactive page of the first mission"
    add("--html", action="store_true", help=meaning)
    meaning = "evaluate a training run's latest team after each checkpoint, with --html"
    add("--watch", metavar="RUN", help=meaning)
    meaning = "folder for the results; existing files are replaced (with --watch: RUN/watch)"
    add("--out", metavar="DIR", help=meaning)
    return parser


def _option(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an argparse type that reports the message of a ConfigError."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _numbers(
    expected: str,
    read: Callable[[str], float] = int,
    least: float = 0,
    most: float = math.inf,
    several: bool = False,
) -> Callable[[str], Any]:
    """Return an argparse type: a number from `least` to `most`, or a list of distinct numbers."""

    def convert(text: str) -> Any:
        try:
            values = [read(part) for part in (text.split(",") if several else [text])]
        except ValueError:
            values = []
        if not values or len({v for v in values if least <= v <= most}) < len(values):
            raise argparse.ArgumentTypeError(f"{text}: give {expected}")
        return values if several else values[0]

    return convert


def terrain_overrides(name: str) -> list[str]:
    """Return the overrides of a terrain. Raises ConfigError if the terrain does not exist."""
    if find_map(name) is not None:
        values = {"path": name, "key": "null", "resolution": "null"}  # those of the map
        settings = [f"sensor.simulation.raster.{key}={value}" for key, value in values.items()]
        return ["sensor.simulation.kinds=[raster]", *settings]
    if name.startswith(_RASTER) and name != _RASTER:
        path = json.dumps(name.removeprefix(_RASTER))  # quoted, so that YAML reads a string
        return ["sensor.simulation.kinds=[raster]", f"sensor.simulation.raster.path={path}"]
    if name not in _TERRAINS and os.path.isfile(name):
        raise ConfigError(f"--terrain {name}: a file needs a prefix; use {_RASTER}{name}")
    if name not in _TERRAINS and "." not in name:
        known = ", ".join((*_TERRAINS, "raster:PATH", "data:NAME"))
        raise ConfigError(f"{name!r}: use {known}, or your own module.Class")
    return [f"sensor.simulation.kinds=[{name}]"]


def world_overrides(
    agents: Sequence[int] | None, ranges: Sequence[float] | None
) -> dict[str, list[str]]:
    """Return the overrides for each combination of team size and radio range [m], by name."""
    teams = {f"agents_{n}": [f"experiment.missions.n_agents={n}"] for n in agents or ()}
    radios = {}
    for metres in ranges or ():
        value = ".inf" if math.isinf(metres) else metres  # YAML's spelling of infinity
        radios[f"range_{metres:.12g}"] = [f"experiment.uav.communication_range={value}"]
    return {
        "_".join(filter(None, (team, radio))): [*teams.get(team, ()), *radios.get(radio, ())]
        for team, radio in product(teams or [""], radios or [""])
    }


def read_policies(text: str) -> tuple[list[str], dict[str, str]]:
    """Return the policy names, and the runs of policies given as `NAME=RUN`.

    A team given as `learned=RUN` is named after its run, without `-{task}`, or after its path if
    two run names are equal. Raises ConfigError if a planner does not exist or a name is repeated.
    """
    given = [part.strip().partition("=") for part in text.split(",")]
    run_names = [_short_name(run) for name, _, run in given if name == LEARNED]
    names: list[str] = []
    runs: dict[str, str] = {}
    for name, equals, run in given:
        if equals and name == LEARNED:
            short = _short_name(run)
            name = short if run_names.count(short) == 1 else run.strip("/").replace("/", "_")
        elif equals:
            check_run_name(name)
        elif name not in PLANNER_NAMES and "." not in name:
            known = ", ".join(PLANNER_NAMES)
            raise ConfigError(f"{name!r} does not exist; use {known}, or your own module.Class")
        if equals:
            runs[name] = run
        names.append(name)
    if len({*names}) < len(names) or runs.keys() & {*PLANNER_NAMES}:
        raise ConfigError(f"{text}: give each planner and run a name of its own, not a planner's")
    return names, runs


def _short_name(run: str) -> str:
    path = Path(run.removeprefix(PRETRAINED))
    return (path.name or path.resolve().name).removesuffix(f"-{TASK}")
