"""What the options of an evaluation ask for: worlds and policies. Loads no PyTorch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TypeVar

from marl_framework.config.errors import ConfigError
from marl_framework.config.parts import LEARNED, PLANNER_NAMES, TERRAINS
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.runs.names import PRETRAINED, check_run_name

RASTER = "raster:"
TERRAIN_NAMES = (*(name for name in TERRAINS if name != "raster"), "mixed")
TASK = "{task}"
"""Stands for the name of the task in the names of runs."""

T = TypeVar("T")


def terrain_overrides(name: str | None) -> list[str]:
    """Return the overrides that a --terrain stands for.

    Raises:
        ConfigError: there is no such terrain.
    """
    if name is None:
        return []
    if name.startswith(RASTER) and name != RASTER:
        path = json.dumps(name.removeprefix(RASTER))  # a text in YAML, whatever it holds
        return ["sensor.simulation.kinds=[raster]", f"sensor.simulation.raster.path={path}"]
    if name not in TERRAIN_NAMES and "." not in name:
        raise ConfigError(
            f"--terrain {name}: use {', '.join(TERRAIN_NAMES)}, raster:PATH, or your own by "
            "dotted path"
        )
    return [f"sensor.simulation.kinds=[{name}]"]


def team_and_radio_overrides(agents: str | None, ranges: str | None) -> dict[str, list[str]]:
    """Return the overrides of each combination of team size and radio range, by its name.

    Args:
        agents: of --agents; None leaves the team as it is.
        ranges: of --communication; None leaves the radio as it is.

    Raises:
        ConfigError: one is no list of numbers.
    """
    teams: list[tuple[str, list[str]]] = [("", [])]
    radios: list[tuple[str, list[str]]] = [("", [])]
    if agents is not None:
        teams = [
            (f"agents_{n}", [f"experiment.missions.n_agents={n}"])
            for n in _list("--agents", agents, _team_size, "team sizes such as 2,4,8")
        ]
    if ranges is not None:
        radios = [
            (f"range_{metres:g}", [f"experiment.uav.communication_range={_yaml_number(metres)}"])
            for metres in _list("--communication", ranges, _range, "ranges [m] such as 0,25,inf")
        ]
    return {
        "_".join(filter(None, (team, radio))): [*of_team, *of_radio]
        for (team, of_team), (radio, of_radio) in product(teams, radios)
    }


def _list(option: str, text: str, read: Callable[[str], T], wanted: str) -> list[T]:
    """Read a list of numbers, each named once."""
    try:
        values = [read(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} {text}: give {wanted}") from error
    if len(set(values)) < len(values):
        raise ConfigError(f"{option} {text}: name each value once")
    return values


def _team_size(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _range(text: str) -> float:
    metres = float(text)
    if not metres >= 0:
        raise ValueError(text)
    return metres


def _yaml_number(number: float) -> str:
    return ".inf" if math.isinf(number) else repr(number)


def policies(text: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of the policies, and the runs of those given as `NAME=RUN`.

    A team given as `learned=RUN` has the name of its run, without `-{task}`; where two have the
    same, that of its whole path.

    Raises:
        ConfigError: there is no such planner, or a name stands twice.
    """
    given = [part.strip().partition("=") for part in text.split(",")]
    short = [_short_name(run) for name, _, run in given if name == LEARNED]
    names: list[str] = []
    runs: dict[str, str] = {}
    for name, equals, run in given:
        if equals and name == LEARNED:
            own = _short_name(run)
            name = own if short.count(own) == 1 else run.strip("/").replace("/", "_")
        elif equals:
            check_run_name(name)
        if equals:
            runs[name] = run
        names.append(name)
    planner_names(text, [name for name in names if name not in runs])
    if len(set(names)) < len(names) or runs.keys() & set(PLANNER_NAMES):
        raise ConfigError(f"--policies {text}: name each run once, and none like a planner")
    return names, runs


def _short_name(run: str) -> str:
    return Path(run.removeprefix(PRETRAINED)).name.removesuffix(f"-{TASK}")


def planner_names(text: str, parts: Sequence[str]) -> list[str]:
    """Return the planners that a text names in parts.

    Raises:
        ConfigError: there is no such planner, or one stands twice.
    """
    names = [part.strip() for part in parts]
    for name in names:
        if name not in PLANNER_NAMES and "." not in name:
            raise ConfigError(
                f"--policies {text}: there is no planner {name!r}; known are "
                f"{', '.join(PLANNER_NAMES)}, and your own by dotted path such as "
                "my_module.MyPlanner"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"--policies {text}: name each planner once")
    return names


def check_numbers(missions: int, seed: int) -> None:
    """Check options that say what to fly.

    Raises:
        ConfigError: one is out of range.
    """
    if missions < 1:
        raise ConfigError(f"--missions {missions}: give a number of missions, 1 or more")
    if not 0 <= seed < MAX_SEED:
        raise ConfigError(f"--seed {seed}: give a whole number from 0 to {MAX_SEED - 1}")
