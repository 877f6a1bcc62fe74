"""The worlds of the suites: fixed, so that results of different teams compare.

Whoever changes a world, the seed or the number of missions raises `VERSION`: results of two
versions do not compare. docs/suite.md says what each world is for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import PARAMS, config_to_dict, load_config
from marl_framework.mission.files import file_checksum

VERSION = 1
SEED = 30001
"""Seed of all missions of the standard. Development uses seeds below 20000."""
MISSIONS = 50
"""Missions of a world."""
BASE = str(PARAMS / "params.yaml")
"""The mission that the worlds change."""
FLIGHTS = ("throne_0755", "throne_1121", "throne_held_out")
"""Measured maps of the suite that are not shipped: thermal flights of the throne data set."""

_DEFINING = ("environment", "sensor", "mapping", "experiment")  # sections that decide a mission
_NOT_DEFINING = {
    "environment": ("num_envs", "seed"),
    "experiment": ("title", "algorithm", "policy", "reward", "baselines"),
}
_OFF: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("constraints", "cost"): lambda cost: cost["limit"] is None,
    ("constraints", "no_fly_zones"): lambda file: file is None,
    ("constraints", "obstacles"): lambda boxes: boxes["number"] == 0,
    ("uav", "crash_rate"): lambda rate: rate == 0,
}
"""Parts of `experiment` that define nothing while they are off."""
_MAP_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class World:
    """Missions that a suite flies."""

    name: str
    meaning: str
    overrides: tuple[str, ...] = ()
    """What differs from params.yaml, `section.key=value` each."""
    map_file: Path | None = None
    """Measured map that is not shipped."""

    def definition(self, seed: int = SEED) -> dict[str, Any]:
        """Return all that decides the missions of a seed, in plain types.

        A map file stands there by its name and SHA-256 instead of its path.

        Raises:
            ConfigError: the map cannot be read.
        """
        tree = config_to_dict(load_config(BASE, self.overrides))
        mission = {
            section: {
                key: value
                for key, value in tree[section].items()
                if key not in _NOT_DEFINING.get(section, ())
            }
            for section in _DEFINING
        }
        for (part, key), off in _OFF.items():
            if off(mission["experiment"][part][key]):
                del mission["experiment"][part][key]
        if self.map_file is not None:
            mission["sensor"]["simulation"]["raster"]["path"] = _fingerprint(self.map_file)
        return {"name": self.name, "meaning": self.meaning, "seed": seed, "mission": mission}


def _fingerprint(file: Path) -> str:
    try:
        return f"{file.name} sha256 {file_checksum(file)}"
    except OSError as error:
        raise ConfigError(f"--maps {file}: cannot be read: {error.strerror or error}") from error


def _kind(name: str) -> str:
    return f"sensor.simulation.kinds=[{name}]"


def _field(exponent: int) -> tuple[str, str]:
    return _kind("random_field"), f"sensor.simulation.cluster_radius={exponent}"


def _teams(place: World, sizes: Sequence[int]) -> list[World]:
    """Return a place with teams of all sizes that hear each other never, up to 25 m, or always."""
    return [
        World(
            f"{place.name}_{uavs}_uavs_radio_{radio.removeprefix('.')}",
            f"{place.meaning}, {uavs} UAVs, {text}",
            (
                *place.overrides,
                f"experiment.missions.n_agents={uavs}",
                f"experiment.uav.communication_range={radio}",
            ),
            place.map_file,
        )
        for uavs in sizes
        for radio, text in _RADIOS.items()
    ]


_RADIOS = {"0": "no radio", "25": "25 m radio", ".inf": "unlimited radio"}
_SPLIT = World("split", "split terrain")
_MIXED = World("mixed", "all six synthetic kinds of terrain", (_kind("mixed"),))
_PUBLISHED_STARTS = "experiment.missions.start=published"
_ELEVATION = (
    _kind("raster"),
    "sensor.simulation.raster.path=matplotlib:jacksboro_fault_dem.npz",
    "sensor.simulation.raster.resolution=1.2",
)
WORLDS = (
    World("split", "split terrain, 4 UAVs, 25 m radio, random starts: the centre of the star"),
    World("published_split", "split terrain, published starts", (_PUBLISHED_STARTS,)),
    _MIXED,
    World(
        "published_mixed",
        "the five kinds of terrain of the published code, published starts",
        (_kind("split,corner,band,two_corners,four_corners"), _PUBLISHED_STARTS),
    ),
    World("field_smooth", "random field, about 300 m of borders", _field(4)),
    World("field_medium", "random field, about 1600 m of borders", _field(3)),
    World("field_rough", "random field, about 9000 m of borders", _field(2)),
    *(
        replace(world, name=world.name.removeprefix("split_"))
        for world in _teams(_SPLIT, (2, 4, 8))
        if world.name != "split_4_uavs_radio_25"  # the centre of the star
    ),
    World("elevation", "matplotlib's elevation map, 1.2 m a pixel by assumption", _ELEVATION),
)
"""Worlds of the standard suite that need nothing but this package."""
TEAM_SIZES = (2, 4, 8, 12)
"""Of the suite `teams`."""


def map_worlds(text: str) -> tuple[World, ...]:
    """Return the worlds of `NAME=PATH,…`, measured maps that say their own resolution.

    Raises:
        ConfigError: a name or a file is not right.
    """
    worlds: list[World] = []
    for part in text.split(","):
        name, _, path = part.partition("=")
        if not _MAP_NAME.fullmatch(name) or not path:
            raise ConfigError(f"--maps {text}: give NAME=PATH,… such as throne_0755=flight.npz")
        if name in {world.name for world in (*WORLDS, *worlds)}:
            raise ConfigError(f"--maps {text}: {name} is another world; name each map once")
        file = Path(path).expanduser()
        place = f"sensor.simulation.raster.path={json.dumps(str(file))}"
        worlds.append(World(name, "measured map", (_kind("raster"), place), file))
    return tuple(worlds)


def suite_worlds(suite: str, maps: Sequence[World]) -> list[World]:
    """Return all worlds of `standard`, or of `teams`: all teams in each place."""
    if suite == "standard":
        return [*WORLDS, *maps]
    return [world for place in (_SPLIT, _MIXED, *maps) for world in _teams(place, TEAM_SIZES)]


def chosen_worlds(suite: str, maps: str | None, only: str | None) -> list[World]:
    """Return the worlds of the command line's `--maps` and `--only`, in the suite's order.

    Raises:
        ConfigError: there is no such world.
    """
    worlds = suite_worlds(suite, map_worlds(maps) if maps is not None else ())
    if only is None:
        return worlds
    wanted = [name.strip() for name in only.split(",")]
    known = [world.name for world in worlds]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--only {name}: choose from {', '.join(known)}")
    return [world for world in worlds if world.name in wanted]


def left_out(suite: str, flown: Mapping[str, Any]) -> list[str]:
    """Return the worlds of the suite that are not among those flown."""
    worlds = suite_worlds(suite, [World(name, "measured map") for name in FLIGHTS])
    return [world.name for world in worlds if world.name not in flown]
