"""A team of pilots over a simulated world, compared with the simulator on the same draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch

from marl_framework.config import geography
from marl_framework.config.errors import ConfigError
from marl_framework.config.field import RANDOM
from marl_framework.config.flying import FlyingConfig
from marl_framework.config.model import Config
from marl_framework.config.named_maps import FIELD_KEY
from marl_framework.deployment.flight_plans import home_metres
from marl_framework.deployment.schedule import landing_seconds, leg_seconds, transit_altitude
from marl_framework.evaluation.flight import FlightLog, FlightRecord, planner_generator
from marl_framework.flying.decision import Decider, MakePlanner
from marl_framework.flying.knowledge import Knowledge, Moment, fits, lay, moment_of
from marl_framework.flying.messages import MOST_UAVS, Reading, decode
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.protocols import Hardware, Log
from marl_framework.flying.simulated import World, simulated_hardware
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.completion import MapCompletion
from marl_framework.planners.protocol import Planner

Wrap = Callable[[Knowledge, Hardware], Hardware]
"""Returns the hardware that the pilot of a UAV uses, in place of its own."""
_FIXED = {
    "experiment.constraints.budget": "one number",
    "experiment.constraints.cost.limit": "null",
    "experiment.uav.crash_rate": "0",
}
"""Values that pilots support, by key of `MissionRanges.keys_that_end_missions`."""
_LIMITS = tuple(name for name in FlyingConfig.model_fields if name.endswith(("timeout", "hold")))
_TICK = 0.25  # of the simulated clock [s]


class DryFlight(NamedTuple):
    """A flown mission."""

    moments: list[list[Moment]]
    """What each UAV knows after each reading, by UAV and move."""
    record: FlightRecord
    """The mission as evaluations record it, with the readings of all UAVs, without returns."""

    @property
    def scores(self) -> dict[str, float]:
        """ROI entropy [bit per cell] and F1 of the belief from the readings of all UAVs."""
        return {name: float(self.record.metrics[name][0, -1]) for name in ("roi_entropy", "f1")}


def check_supported(config: Config, simulated: bool = True) -> None:
    """Raise a ConfigError if pilots cannot fly the missions of a configuration.

    With vehicles that are not `simulated`, missions may draw neither obstacles nor fields.
    """
    missions = config.missions
    needed = {key: _FIXED[key] for key in missions.keys_that_end_missions}
    if not simulated and config.environment.field == RANDOM:
        needed[FIELD_KEY] = "a file, or null"
    if not simulated and config.experiment.constraints.obstacles.number:
        needed["experiment.constraints.obstacles.number"] = "0"
    if missions.has_delays:
        needed["experiment.uav.delay"] = "0"
    if len(set(missions.team_sizes)) > 1:
        needed["experiment.missions.n_agents"] = "one number"
    elif missions.most_agents > MOST_UAVS:
        needed["experiment.missions.n_agents"] = f"{MOST_UAVS} or fewer"
    for key, value in needed.items():
        raise ConfigError(f"{key}: not supported in flight; set it to {value}")


def make_pilots(
    world: World,
    make_planner: MakePlanner,
    log: Log = lambda entry: None,
    separation: float = 0.0,
    wrap: Wrap = lambda knowledge, hardware: hardware,
) -> list[Pilot]:
    """Return a pilot for each UAV of a world, with simulated hardware that `wrap` may replace.

    Raises ConfigError if two UAVs start closer than `separation` [m].
    """
    check_starts(world, separation)
    hardware = [simulated_hardware(world, uav, log) for uav in range(len(world.starts))]
    return [
        make_pilot(world, uav, make_planner, parts, separation, wrap)
        for uav, parts in enumerate(hardware)
    ]


def make_pilot(
    world: World,
    uav: int,
    make_planner: MakePlanner,
    hardware: Hardware,
    separation: float,
    wrap: Wrap,
) -> Pilot:
    """Return the pilot of one UAV; see `make_pilots`."""
    env = world.environment
    generator, knowledge = planner_generator(env, world.seed), Knowledge(uav, env, world.start)
    decider = Decider(uav, env, make_planner, generator, separation)
    parts, seconds = wrap(knowledge, hardware), return_seconds(env)
    return Pilot(knowledge, decider, world.number, parts, seconds)


def with_time_factor(config: Config, factor: float) -> Config:
    """Return limits for computers and radios that are no faster where the clock is."""
    limits = config.flying
    longer = {name: factor * getattr(limits, name) for name in (*_LIMITS, "clock_error")}
    return config.model_copy(update={"flying": limits.model_copy(update=longer)})


def area_place(config: Config) -> geography.Place | None:
    """Return where the area of the missions lies: at `deployment.origin`; None if it is unknown.

    Windows of a measured map may be turned or mirrored, so their place is unknown, too. Raises
    ConfigError if rasterio is missing.
    """
    if "raster" in config.sensor.simulation.kinds:
        return None
    return geography.find_place(config.deployment.origin)


def return_seconds(environment: MissionEnvironment) -> float:
    """Return an upper bound of the time that a UAV takes to fly home [s]."""
    settings, lattice = environment.config.deployment, environment.lattice
    corner = lattice.metres(torch.tensor(lattice.shape) - 1).tolist()
    top = transit_altitude(environment.n_agents, corner[2], settings)
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


def fly(world: World, pilots: list[Pilot], completion: MapCompletion | None = None) -> DryFlight:
    """Fly all pilots to the end of the mission; the record has the completed map of the team."""
    while not all(pilot.over for pilot in pilots):
        if not any([pilot.advance() for pilot in pilots]):
            world.clock.advance(_TICK)
    sent = [message for message in map(decode, world.sent) if isinstance(message, Reading)]
    record = record_of(world, sent, world.environment.episode_length, "team", completion)
    return DryFlight([pilot.knowledge.moments for pilot in pilots], record)


@torch.no_grad()
def simulate(world: World, planner: Planner) -> DryFlight:
    """Fly the mission of a world in the simulator."""
    env = world.environment
    generator, state = planner_generator(env, world.seed), env.reset(world.reset)
    log, uavs = FlightLog(env, world.reset, state), range(env.n_agents)
    log.add(state, state.active.clone())
    moments = [[moment_of(state, uav)] for uav in uavs]
    for draws in world.steps:
        env.step(state, planner.act(state, generator).actions, draws)
        log.add(state, state.active.clone())
        for uav in uavs:
            moments[uav].append(moment_of(state, uav))
    return DryFlight(moments, _without_returns(log, "simulator"))


def record_of(
    world: World,
    readings: Iterable[Reading],
    last: int,
    name: str,
    completion: MapCompletion | None = None,
) -> FlightRecord:
    """Return the record of a mission with these readings, up to move `last`."""
    env, state = world.environment, world.environment.empty_state()
    log = FlightLog(env, world.reset, world.start, completion=completion)
    for field in ("positions", "inside", "counted"):
        getattr(state, field).copy_(getattr(world.start, field))
    env.blank(state)
    fitting = (reading for reading in readings if fits(env.camera, reading))
    taken_at = {(each.envelope.move, each.envelope.sender): each for each in fitting}
    for move in range(last + 1):
        frames, taken = torch.zeros(2, 1, env.n_agents, dtype=torch.bool)
        state.readings.zero_()
        for uav in range(env.n_agents):
            if reading := taken_at.get((move, uav)):
                state.positions[0, uav] = torch.tensor(reading.place)
                state.readings[0, uav] = lay(env.camera, reading)
                state.caution[0, uav : uav + 1] = reading.caution
                frames[0, uav], taken[0, uav] = bool(reading.bits.size), True
        view = env.fusion.view(state, frames.new_ones(1), frames)
        env.fusion.fuse_global(state, view, None if move else env.prior)
        log.add(state, taken)
    return _without_returns(log, name)


def _without_returns(log: FlightLog, name: str) -> FlightRecord:
    unknown = torch.full((1,), torch.nan)
    return log.record(name, unknown, unknown, 0.0)


def first_difference(flown: DryFlight, simulated: DryFlight) -> str | None:
    """Return the first difference between two flights of a mission, or None if they are equal."""
    pairs = zip(flown.moments, simulated.moments, strict=True)
    for uav, (ours, theirs) in enumerate(pairs):
        for move, (here, there) in enumerate(zip(ours, theirs, strict=False)):
            for name, value, other in zip(Moment._fields, here, there, strict=True):
                if value != other:
                    return f"{name} of UAV {uav + 1} after move {move}"
        if len(ours) != len(theirs):
            return f"UAV {uav + 1} left the mission after {len(ours)} readings"
    beliefs = flown.record.belief, simulated.record.belief
    return None if torch.equal(*beliefs) else "belief of the team"
