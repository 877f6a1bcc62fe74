"""A team of pilots over a simulated world, compared with the simulator on the same draws."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.yaml_text import format_yaml
from marl_framework.deployment.schedule import leg_seconds
from marl_framework.evaluation.flight import (
    FlightLog,
    FlightRecord,
    MissionStreams,
    planner_generator,
)
from marl_framework.flying.frames import fits, lay
from marl_framework.flying.messages import Place, Reading, decode
from marl_framework.flying.pilot import Phase, Pilot
from marl_framework.flying.protocols import Radio
from marl_framework.flying.record import Hardware, Wrap
from marl_framework.flying.simulated import (
    InProcessRadio,
    SimulatedCamera,
    SimulatedVehicle,
    World,
    blank_state,
)
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Planner

MakePlanner = Callable[[MissionEnvironment], Planner]
MakeRadio = Callable[[World, int], Radio]
_FIXED = {
    "experiment.constraints.budget": "one number",
    "experiment.constraints.cost.limit": "null",
    "experiment.uav.crash_rate": "0",
}
"""Values that pilots support, by key of `MissionRanges.keys_that_end_missions`."""
_TICK = 0.1  # of the simulated clock [s]
_SLACK = 10.0  # wait for others, in addition to the longest leg [s]


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
    if config.sensor.model.adapt:
        needed["sensor.model.adapt"] = "false"
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
    log: Callable[[dict[str, Any]], None] = lambda entry: None,
    separation: float = 0.0,
    make_radio: MakeRadio = InProcessRadio,
    wrap: Wrap = lambda uav, state, parts: parts,
) -> list[Pilot]:
    """Return a pilot for each UAV of a world, with simulated vehicles and cameras.

    `wrap` may replace the hardware of each UAV, as `record.FlightRecorder.wrap` does.
    """
    env, settings = world.environment, world.environment.config.deployment
    steps = env.lattice.offsets.double() * env.lattice.spacing
    slowest = leg_seconds(torch.zeros_like(steps).numpy(), steps.numpy(), settings).max()
    mission = mission_number(env.config, seed)

    def make_pilot(uav: int, place: Place) -> Pilot:
        state = blank_state(env, world.start)
        vehicle = SimulatedVehicle(place, env.lattice, settings, world.clock)
        parts = Hardware(
            vehicle, SimulatedCamera(world, uav), make_radio(world, uav), world.clock, log
        )
        vehicle, camera, radio, clock, log_entry = wrap(uav, state, parts)
        return Pilot(
            uav,
            env,
            make_planner,
            state,
            mission,
            vehicle,
            camera,
            radio,
            clock,
            planner_generator(env, seed),
            float(slowest) + _SLACK,
            separation,
            log_entry,
        )

    return [make_pilot(uav, place) for uav, place in enumerate(world.starts)]


def mission_number(config: Config, seed: int) -> int:
    """Return the number that the messages of a mission carry."""
    text = format_yaml(config_to_dict(config)).encode()
    return zlib.crc32(text) << 32 | seed


def fly(world: World, pilots: list[Pilot]) -> DryFlight:
    """Fly all pilots to the end of the mission."""
    moments: list[list[Moment]] = [[] for _ in pilots]
    while any(pilot.phase is not Phase.DONE for pilot in pilots):
        busy = False
        for uav, pilot in enumerate(pilots):
            before = pilot.phase
            busy |= pilot.advance()
            if before is Phase.HEARING and pilot.phase is not before:
                moments[uav].append(_moment(pilot.state, uav))
        if not busy:
            world.clock.advance(_TICK)
    return DryFlight(moments, team_record(world))


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
    env = world.environment
    state, readings = env.empty_state(), {}
    log = FlightLog(env, world.reset, world.start)
    state.positions.copy_(world.start.positions)
    for message in map(decode, world.sent):
        if isinstance(message, Reading):
            readings[message.envelope.move, message.envelope.sender] = message
    for move in range(env.episode_length + 1):
        frames, taken = torch.zeros(2, 1, env.n_agents, dtype=torch.bool)
        state.readings.zero_()
        for uav in range(env.n_agents):
            reading = readings.get((move, uav))
            if reading is not None and fits(env.camera, reading.place, reading.bits):
                state.positions[0, uav] = torch.tensor(reading.place)
                state.readings[0, uav] = lay(env.camera, reading.place, reading.bits)
                frames[0, uav], taken[0, uav] = bool(reading.bits.size), True
        view = env.fusion.view(state, frames.new_ones(1), frames)
        env.fusion.fuse_global(state, view, None if move else env.config.mapping.prior)
        log.add(state, taken)
    return _without_returns(log, "team")


def _without_returns(log: FlightLog, name: str) -> FlightRecord:
    unknown = torch.full((1,), torch.nan)
    return log.record(name, unknown, unknown, 0.0)


def first_difference(flown: DryFlight, simulated: DryFlight) -> str | None:
    """Return the first difference between two flights of a mission, or None if they are equal."""
    pairs = zip(flown.moments, simulated.moments, strict=True)
    for uav, (ours, theirs) in enumerate(pairs):
        for move, (here, there) in enumerate(zip(ours, theirs, strict=True)):
            for name, value, other in zip(Moment._fields, here, there, strict=True):
                if value != other:
                    return f"{name} of UAV {uav + 1} after move {move}"
    return None if torch.equal(flown.belief, simulated.belief) else "belief of the team"


def _moment(state: MissionState, uav: int) -> Moment:
    x, y, z = state.positions[0, uav].tolist()
    heard = tuple(state.heard[0, uav].nonzero().flatten().tolist())
    belief = _checksum(state.beliefs[0, uav])
    averages = state.pooled_readings, state.pooled_beliefs, state.pooled_uncertainty
    return Moment((x, y, z), heard, belief, _checksum(*(maps[0, uav] for maps in averages)))


def _checksum(*maps: Tensor) -> int:
    return zlib.crc32(b"".join(values.numpy().tobytes() for values in maps))
