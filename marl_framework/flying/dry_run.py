"""A team of pilots over a simulated world, compared with the simulator on the same draws."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.yaml_text import format_yaml
from marl_framework.deployment.flight_plans import home_metres
from marl_framework.deployment.schedule import landing_seconds, leg_seconds, transit_altitude
from marl_framework.evaluation.flight import (
    FlightLog,
    FlightRecord,
    MissionStreams,
    planner_generator,
)
from marl_framework.flying.decision import MakePlanner
from marl_framework.flying.frames import fits, lay
from marl_framework.flying.messages import MOST_UAVS, Place, Reading, decode
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.protocols import Hardware, Log
from marl_framework.flying.record import Wrap
from marl_framework.flying.simulated import World, blank_state, simulated_hardware
from marl_framework.flying.survey import area_place
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Planner

Equip = Callable[[World, int, Log], Hardware]
_FIXED = {
    "experiment.constraints.budget": "one number",
    "experiment.constraints.cost.limit": "null",
    "experiment.uav.crash_rate": "0",
}
"""Values that pilots support, by key of `MissionRanges.keys_that_end_missions`."""
_TICK = 0.25  # of the simulated clock [s]


class Moment(NamedTuple):
    """What a UAV knows after a reading."""

    place: Place
    """Place of the reading, lattice indices."""
    heard: tuple[int, ...]
    """UAVs whose readings it has fused, its own among them."""
    belief: int
    """CRC-32 of its belief."""
    averages: int
    """CRC-32 of the averages of its reading, belief and uncertainty that networks see."""


@dataclass
class DryFlight:
    """A flown mission."""

    moments: list[list[Moment]]
    """What each UAV knows after each reading, by UAV and move."""
    record: FlightRecord
    """The mission as evaluations record it, without returns."""

    @property
    def belief(self) -> Tensor:
        """Belief from the readings of all UAVs, [R, C]."""
        return self.record.belief[0]

    @property
    def roi_entropy(self) -> float:
        """Entropy in the region of interest of `belief` [bit per cell]."""
        return float(self.record.metrics["roi_entropy"][0, -1])

    @property
    def f1(self) -> float:
        """F1 of `belief`."""
        return float(self.record.metrics["f1"][0, -1])


def check_supported(config: Config) -> None:
    """Raise a ConfigError if pilots cannot fly the missions of a configuration."""
    missions, needed = config.missions, {}
    if len(set(missions.team_sizes)) > 1:
        needed["experiment.missions.n_agents"] = "one number"
    for key in missions.keys_that_end_missions:
        needed[key] = _FIXED[key]
    if missions.has_delays:
        needed["experiment.uav.delay"] = "0"
    if missions.most_agents > MOST_UAVS:
        needed["experiment.missions.n_agents"] = f"{MOST_UAVS} or fewer"
    for key, value in needed.items():
        raise ConfigError(f"{key}: not supported in flight; set it to {value}")


def make_world(environment: MissionEnvironment, seed: int) -> World:
    """Return the first mission of an evaluation seed; `environment` has one mission."""
    streams = MissionStreams(environment, seed)
    reset = streams.draw_reset()
    return World(
        environment, reset, [streams.draw_step() for _ in range(environment.episode_length)]
    )


def make_pilots(
    world: World,
    make_planner: MakePlanner,
    seed: int,
    log: Log = lambda entry: None,
    separation: float = 0.0,
    equip: Equip = simulated_hardware,
    wrap: Wrap = lambda uav, state, hardware: hardware,
) -> list[Pilot]:
    """Return a pilot for each UAV of a world, with the hardware that `equip` returns.

    `wrap` may replace the hardware of each UAV, as `record.FlightRecorder.wrap` does. Raises
    ConfigError if two UAVs start closer than `separation` [m].
    """
    check_starts(world, separation)
    hardware = [equip(world, uav, log) for uav in range(world.environment.n_agents)]
    return [
        make_pilot(world, uav, make_planner, seed, parts, separation, wrap)
        for uav, parts in enumerate(hardware)
    ]


def make_pilot(
    world: World,
    uav: int,
    make_planner: MakePlanner,
    seed: int,
    hardware: Hardware,
    separation: float,
    wrap: Wrap,
) -> Pilot:
    """Return the pilot of one UAV; see `make_pilots`."""
    env = world.environment
    state, generator = blank_state(env, world.start), planner_generator(env, seed)
    parts, seconds = wrap(uav, state, hardware), return_seconds(env)
    mission = mission_number(env.config, seed)
    return Pilot(uav, env, make_planner, state, mission, parts, generator, separation, seconds)


def return_seconds(environment: MissionEnvironment) -> float:
    """Return an upper bound of the time that a UAV takes to fly home [s]."""
    settings, lattice = environment.config.deployment, environment.lattice
    last = torch.tensor(lattice.shape) - 1
    corner = lattice.metres(last).double().numpy()
    top = transit_altitude(environment.n_agents, float(corner[2]), settings)
    place = area_place(environment.config)
    home = (0.0, 2 * settings.separation) if place is None else home_metres(place, settings.home)
    across = math.hypot(*home) + math.hypot(*corner[:2])
    across += settings.pad_distance * environment.n_agents
    stops = np.array([[0, 0, 0], [0, 0, top], [across, 0, top]])
    way = leg_seconds(stops[:-1], stops[1:], settings).sum()
    return float(way + landing_seconds(stops[-1], settings))


def check_starts(world: World, separation: float) -> None:
    """Raise a ConfigError if two UAVs start closer than `separation` [m], horizontally."""
    level = world.environment.lattice.metres(torch.tensor(world.starts))[:, :2]
    for (i, a), (j, b) in itertools.combinations(enumerate(level, 1), 2):
        if (distance := float((a - b).norm())) < separation - 1e-6:
            raise ConfigError(
                f"UAVs {i} and {j} start {distance:.1f} m apart, and must stay {separation:g} m "
                "apart; choose another --seed, or set experiment.missions.start to corners"
            )


def mission_number(config: Config, seed: int) -> int:
    """Return the number that the messages of a mission carry."""
    everything = config_to_dict(config)
    shared = ("environment", "sensor", "mapping", "experiment")  # the same for all UAVs
    text = format_yaml({section: everything[section] for section in shared}).encode()
    return zlib.crc32(text) << 32 | seed


def fly(world: World, pilots: list[Pilot]) -> DryFlight:
    """Fly all pilots to the end of the mission."""
    moments: list[list[Moment]] = [[] for _ in pilots]
    while not all(pilot.over for pilot in pilots):
        busy = False
        for uav, pilot in enumerate(pilots):
            busy |= advance(pilot, uav, moments[uav])
        if not busy:
            world.clock.advance(_TICK)
    return DryFlight(moments, team_record(world))


def advance(pilot: Pilot, uav: int, moments: list[Moment]) -> bool:
    """Let a pilot do what it can, and add what it knows after a reading; see `Pilot.advance`."""
    busy = pilot.advance()
    if pilot.knowledge.fused > len(moments):
        moments.append(_moment(pilot.knowledge.state, uav))
    return busy


def simulate(world: World, planner: Planner, seed: int) -> DryFlight:
    """Fly the mission of a world in the simulator."""
    env = world.environment
    generator, state = planner_generator(env, seed), env.reset(world.reset)
    log, uavs = FlightLog(env, world.reset, state), range(env.n_agents)
    log.add(state, state.active.clone())
    moments = [[_moment(state, uav)] for uav in uavs]
    for draws in world.steps:
        with torch.no_grad():
            actions = planner.act(state, generator).actions
        env.step(state, actions, draws)
        log.add(state, state.active.clone())
        for uav in uavs:
            moments[uav].append(_moment(state, uav))
    return DryFlight(moments, _without_returns(log, "simulator"))


def team_record(world: World) -> FlightRecord:
    """Return the record of a mission, with all readings that were sent in its world."""
    sent = [message for message in map(decode, world.sent) if isinstance(message, Reading)]
    return record_of(world, sent, world.environment.episode_length, "team")


def record_of(world: World, readings: Iterable[Reading], last: int, name: str) -> FlightRecord:
    """Return the record of a mission with these readings, up to move `last`."""
    env = world.environment
    state = env.empty_state()
    log = FlightLog(env, world.reset, world.start)
    for name in ("positions", "inside", "counted"):
        getattr(state, name).copy_(getattr(world.start, name))
    env.blank(state)
    taken_at = {(each.envelope.move, each.envelope.sender): each for each in readings}
    for move in range(last + 1):
        frames, taken = torch.zeros(2, 1, env.n_agents, dtype=torch.bool)
        state.readings.zero_()
        for uav in range(env.n_agents):
            reading = taken_at.get((move, uav))
            if reading is not None and fits(env.camera, reading.place, reading.bits):
                state.positions[0, uav] = torch.tensor(reading.place)
                state.readings[0, uav] = lay(env.camera, reading.place, reading.bits)
                frames[0, uav], taken[0, uav] = bool(reading.bits.size), True
        view = env.fusion.view(state, frames.new_ones(1), frames)
        env.fusion.fuse_global(state, view, None if move else env.prior)
        log.add(state, taken)
    return _without_returns(log, name)


def _without_returns(log: FlightLog, name: str) -> FlightRecord:
    unknown = torch.full((1,), torch.nan)
    return log.record(name, unknown, unknown, 0.0)


def _moment(state: MissionState, uav: int) -> Moment:
    """Return what a UAV knows."""
    x, y, z = state.positions[0, uav].tolist()
    heard = tuple(state.heard[0, uav].nonzero().flatten().tolist())
    belief = _checksum(state.beliefs[0, uav])
    averages = state.pooled_readings, state.pooled_beliefs, state.pooled_uncertainty
    return Moment((x, y, z), heard, belief, _checksum(*(maps[0, uav] for maps in averages)))


def first_difference(flown: DryFlight, simulated: DryFlight) -> str | None:
    """Return the first difference between two flights of a mission, or None if they are equal."""
    pairs = zip(flown.moments, simulated.moments, strict=True)
    for uav, (ours, theirs) in enumerate(pairs):
        for move, (here, there) in enumerate(zip(ours, theirs, strict=True)):
            for name, value, other in zip(Moment._fields, here, there, strict=True):
                if value != other:
                    return f"{name} of UAV {uav + 1} after move {move}"
    return None if torch.equal(flown.belief, simulated.belief) else "belief of the team"


def _checksum(*maps: Tensor) -> int:
    return zlib.crc32(b"".join(values.numpy().tobytes() for values in maps))
