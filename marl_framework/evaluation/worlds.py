"""Worlds of the suites, which are fixed so that results of different teams are comparable.

If you change a world, the seed or the number of missions, raise `VERSION`: results of different
versions are not comparable. docs/suite.md describes each world.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import PARAMS, config_to_dict, load_config
from marl_framework.mission.files import file_checksum

VERSION = 1
SEED = 30001
"""Standard seed of all missions. Development uses seeds below 20000."""
MISSIONS = 50
"""Standard number of missions per world."""
BASE = str(PARAMS / "params.yaml")
"""Params file that all worlds modify."""
FLIGHTS = ("throne_0755", "throne_1121", "throne_held_out")
"""Measured maps not shipped with the package: thermal flights of the throne data set."""

_DEFINING: dict[str, tuple[str, ...]] = {
    "environment": ("num_envs", "seed"),
    "sensor": (),
    "mapping": (),
    "experiment": ("title", "algorithm", "policy", "reward", "baselines"),
}
"""Sections that determine a mission, each with the keys that do not."""
_OFF: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("constraints", "cost"): lambda cost: cost["limit"] is None,
    ("constraints", "no_fly_zones"): lambda file: file is None,
    ("constraints", "obstacles"): lambda boxes: boxes["number"] == 0,
    ("uav", "crash_rate"): lambda rate: rate == 0,
}
"""Keys of `experiment` that are left out of the definition while the feature is off."""
_MAP_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class World:
    """Missions that a suite flies."""

    name: str
    meaning: str
    overrides: tuple[str, ...] = ()
    """Differences from params.yaml, as `section.key=value` strings."""
    map_file: Path | None = None
    """File of a measured map; None for worlds that need only this package."""

    def definition(self, seed: int = SEED) -> dict[str, Any]:
        """Return all settings that determine the missions, in plain types.

        A map file is identified by its name and SHA-256 instead of its path. Raises ConfigError if
        the map cannot be read.
        """
        tree = config_to_dict(load_config(BASE, self.overrides))
        mission = {
            section: {k: v for k, v in tree[section].items() if k not in ignored}
            for section, ignored in _DEFINING.items()
        }
        for (part, key), is_off in _OFF.items():
            if is_off(mission["experiment"][part][key]):
                del mission["experiment"][part][key]
        if self.map_file is not None:
            try:
                checksum = file_checksum(self.map_file)
            except OSError as error:
                reason = error.strerror or error
                raise ConfigError(f"--maps {self.map_file} cannot be read: {reason}") from error
            path = f"{self.map_file.name} sha256 {checksum}"
            mission["sensor"]["simulation"]["raster"]["path"] = path
        return {"name": self.name, "meaning": self.meaning, "seed": seed, "mission": mission}


def _set_kind(name: str) -> str:
    return f"sensor.simulation.kinds=[{name}]"


def _set_field(exponent: int) -> tuple[str, str]:
    return _set_kind("random_field"), f"sensor.simulation.cluster_radius={exponent}"


def _vary_teams(place: World, sizes: Sequence[int]) -> list[World]:
    """Return one world for each team size and radio range, with the terrain of `place`."""
    worlds = []
    for uavs, (radio, text) in product(sizes, _RADIOS.items()):
        size = f"experiment.missions.n_agents={uavs}"
        reach = f"experiment.uav.communication_range={radio}"
        name = f"{place.name}_{uavs}_uavs_radio_{radio.removeprefix('.')}"
        meaning = f"{place.meaning}, {uavs} UAVs, {text}"
        worlds.append(World(name, meaning, (*place.overrides, size, reach), place.map_file))
    return worlds


_RADIOS = {"0": "no radio", "25": "25 m radio", ".inf": "unlimited radio"}
_SPLIT = World("split", "split terrain")
_MIXED = World("mixed", "all six synthetic kinds of terrain", (_set_kind("mixed"),))
_PUBLISHED_STARTS = "experiment.missions.start=published"
_ELEVATION = (
    _set_kind("raster"),
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
        (_set_kind("split,corner,band,two_corners,four_corners"), _PUBLISHED_STARTS),
    ),
    World("field_smooth", "random field, about 300 m of borders", _set_field(4)),
    World("field_medium", "random field, about 1600 m of borders", _set_field(3)),
    World("field_rough", "random field, about 9000 m of borders", _set_field(2)),
    *(
        replace(world, name=world.name.removeprefix("split_"))
        for world in _vary_teams(_SPLIT, (2, 4, 8))
        if world.name != "split_4_uavs_radio_25"  # the centre of the star
    ),
    World("elevation", "matplotlib's elevation map, 1.2 m a pixel by assumption", _ELEVATION),
)
"""Worlds of the standard suite that need only this package."""
TEAM_SIZES = (2, 4, 8, 12)
"""Team sizes of the suite `teams`."""


def _map_worlds(text: str) -> list[World]:
    worlds: list[World] = []
    for part in text.split(","):
        name, _, path = part.partition("=")
        if not _MAP_NAME.fullmatch(name) or not path:
            raise ConfigError(f"--maps {text}: give NAME=PATH,… such as throne_0755=flight.npz")
        if name in {world.name for world in (*WORLDS, *worlds)}:
            raise ConfigError(f"--maps {text}: {name} exists already; give each map its own name")
        file = Path(path).expanduser()
        place = f"sensor.simulation.raster.path={json.dumps(str(file))}"
        worlds.append(World(name, "measured map", (_set_kind("raster"), place), file))
    return worlds


def _suite_worlds(suite: str, maps: Sequence[World]) -> list[World]:
    if suite == "standard":
        return [*WORLDS, *maps]
    return [world for place in (_SPLIT, _MIXED, *maps) for world in _vary_teams(place, TEAM_SIZES)]


def chosen_worlds(suite: str, maps: str | None, only: str | None) -> list[World]:
    """Return the suite's worlds, reduced to `--only`; raise ConfigError for an unknown world."""
    worlds = _suite_worlds(suite, [] if maps is None else _map_worlds(maps))
    if only is None:
        return worlds
    chosen = {name.strip() for name in only.split(",")}
    known = [world.name for world in worlds]
    if unknown := chosen.difference(known):
        raise ConfigError(f"--only {min(unknown)}: unknown world; choose from {', '.join(known)}")
    return [world for world in worlds if world.name in chosen]


def left_out(suite: str, flown: Mapping[str, Any]) -> list[str]:
    """Return the worlds of the suite that were not flown."""
    worlds = _suite_worlds(suite, [World(name, "measured map") for name in FLIGHTS])
    return [world.name for world in worlds if world.name not in flown]
