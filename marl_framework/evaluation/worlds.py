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
from marl_framework.config.mission import SensorRealityConfig
from marl_framework.config.named_maps import locate
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
_OFF: dict[tuple[str, ...], Callable[[Any], bool]] = {
    ("experiment", "constraints", "cost"): lambda cost: cost["limit"] is None,
    ("experiment", "constraints", "cost", "wind"): lambda wind: wind == 0,
    ("experiment", "constraints", "no_fly_zones"): lambda file: file is None,
    ("experiment", "constraints", "obstacles"): lambda boxes: boxes["number"] == 0,
    ("experiment", "uav", "crash_rate"): lambda rate: rate == 0,
    ("experiment", "uav", "delay"): lambda delay: delay == 0,
    ("experiment", "uav", "failure_burst"): lambda burst: burst is None,
    ("experiment", "uav", "position_error"): lambda error: not any(error.values()),
    ("sensor", "simulation", "raster", "whole"): lambda whole: not whole,
    ("sensor", "model", "adapt"): lambda adapt: not adapt,
    ("sensor", "reality"): lambda reality: reality == SensorRealityConfig().model_dump(),
    ("mapping", "caution"): lambda caution: caution == 1,
    ("environment", "area"): lambda areas: areas is None,
    ("environment", "field"): lambda file: file is None,
}
"""Keys that are left out of the definition while the feature is off."""
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
        for (*sections, key), is_off in _OFF.items():
            section: Any = mission
            for name in sections:
                section = section.get(name, {})
            if key in section and is_off(section[key]):
                del section[key]
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


def _errors(bias: float, jitter: float) -> tuple[str, ...]:
    key = "experiment.uav.position_error"
    return f"{key}.bias={bias}", f"{key}.jitter={jitter}"


def _misread(share: float) -> tuple[str, ...]:
    return f"sensor.reality.miss={share}", f"sensor.reality.false_alarm={share}"


def _lost(messages: float, burst: float, delay: str = "0") -> tuple[str, ...]:
    uav = "experiment.uav"
    lost = f"{uav}.failure_rate={messages}", f"{uav}.failure_burst={burst}"
    return *lost, f"{uav}.delay={delay}"


def _frames(share: float) -> tuple[str, ...]:
    return (f"sensor.reality.lost_frames={share}",)


def _wind(share: float) -> tuple[str, ...]:
    cost = "experiment.constraints.cost"
    return f"{cost}.limit=75", f"{cost}.wind={share}"


_DISTURBANCES: dict[str, dict[str, tuple[str, ...]]] = {
    "position": {f"{m} m": _errors(m, m / 2) for m in (0.5, 1, 2)},
    "camera": {f"{share:.0%}": _misread(share) for share in (0.02, 0.05, 0.1)},
    "frames": {f"{share:.0%}": _frames(share) for share in (0.1, 0.3, 0.5)},
    "messages": {f"{share:.0%}": _lost(share, 10) for share in (0.3, 0.6, 0.9)},
    "delay": {f"{moves} moves": (f"experiment.uav.delay={moves}",) for moves in (1, 2, 4)},
    "wind": {f"{share:.0%}": _wind(share) for share in (0.2, 0.4, 0.6)},
}
"""Settings of each disturbance at three strengths, by strength."""
_MEANINGS = {
    "position": "standard deviation {} of each UAV's position, and half of that in each reading",
    "camera": "{} more cells misread than assumed",
    "frames": "{} of the frames lost",
    "messages": "{} of the messages lost, in bursts of 10",
    "delay": "messages arrive {} late",
    "wind": "wind at {} of the airspeed, cost limit of 75 m",
}
_DAYS = {
    "mild": (*_errors(0.5, 0.25), *_misread(0.02), *_frames(0.05), *_lost(0.3, 2, "[0,1]")),
    "bad": (*_errors(1, 0.5), *_misread(0.05), *_frames(0.15), *_lost(0.5, 4, "[0,1,2]")),
    "terrible": (*_errors(2, 1), *_misread(0.1), *_frames(0.3), *_lost(0.8, 10, "[1,2,4]")),
}
"""Settings of the worlds that combine disturbances."""


def _disturb(place: World) -> list[World]:
    """Return the quiet world and its disturbed ones, with the terrain of `place`."""

    def world(name: str, meaning: str, settings: tuple[str, ...]) -> World:
        text = f"{place.meaning}, {meaning}"
        return World(f"{place.name}_{name}", text, (*place.overrides, *settings), place.map_file)

    single = [
        world(f"{kind}_{level}", _MEANINGS[kind].format(strength), settings)
        for kind, strengths in _DISTURBANCES.items()
        for level, (strength, settings) in enumerate(strengths.items(), 1)
    ]
    days = [world(f"{day}_day", f"a {day} day", settings) for day, settings in _DAYS.items()]
    return [place, *single, *days]


def _map_worlds(text: str) -> list[World]:
    worlds: list[World] = []
    for part in text.split(","):
        name, _, path = part.partition("=")
        if not _MAP_NAME.fullmatch(name) or not path:
            raise ConfigError(f"--maps {text}: give NAME=PATH,… such as throne_0755=flight.npz")
        if name in {world.name for world in (*WORLDS, *worlds)}:
            raise ConfigError(f"--maps {text}: {name} exists already; give each map its own name")
        place = f"sensor.simulation.raster.path={json.dumps(path)}"
        worlds.append(World(name, "measured map", (_set_kind("raster"), place), locate(path)))
    return worlds


def _suite_worlds(suite: str, maps: Sequence[World]) -> list[World]:
    if suite == "standard":
        return [*WORLDS, *maps]
    if suite == "rough":
        return [world for place in (_SPLIT, *maps) for world in _disturb(place)]
    return [world for place in (_SPLIT, _MIXED, *maps) for world in _vary_teams(place, TEAM_SIZES)]


def chosen_worlds(suite: str, maps: str | None, only: str | None) -> list[World]:
    """Return the suite's worlds, reduced to `--only`; raise ConfigError for a wrong name."""
    worlds = _suite_worlds(suite, [] if maps is None else _map_worlds(maps))
    known = [world.name for world in worlds]
    if repeated := sorted(name for name in known if known.count(name) > 1):
        raise ConfigError(f"--maps {maps}: two worlds are named {repeated[0]}; rename a map")
    if only is None:
        return worlds
    chosen = {name.strip() for name in only.split(",")}
    if unknown := chosen.difference(known):
        raise ConfigError(f"--only {min(unknown)}: unknown world; choose from {', '.join(known)}")
    return [world for world in worlds if world.name in chosen]


def left_out(suite: str, flown: Mapping[str, Any]) -> list[str]:
    """Return the worlds of the suite that were not flown."""
    worlds = _suite_worlds(suite, [World(name, "measured map") for name in FLIGHTS])
    return [world.name for world in worlds if world.name not in flown]
