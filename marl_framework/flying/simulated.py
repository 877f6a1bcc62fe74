"""A simulated world for pilots: vehicles, cameras and radios, with the draws of the simulator."""

from __future__ import annotations

import zlib
from operator import ge

import numpy as np
import torch
from torch import Tensor

from marl_framework.config.loading import config_to_dict
from marl_framework.config.yaml_text import format_yaml
from marl_framework.deployment.schedule import leg_seconds, transit_altitude
from marl_framework.evaluation.flight import MissionStreams
from marl_framework.flying.knowledge import cut
from marl_framework.flying.messages import Bits, DamagedError, Message, Place, Position, decode
from marl_framework.flying.protocols import Clock, Hardware, Log, Radio, Status
from marl_framework.flying.safety import Point
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.files import files_read
from marl_framework.mission.radio import hear

_SHARED = ("environment", "sensor", "mapping", "experiment")  # sections, the same for all UAVs


class SimulatedClock:
    """Clock of a simulation; `advance` moves it."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return the time [s]."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass [s]."""
        self._now += seconds


class SimulatedVehicle:
    """A vehicle without position error; legs take as long as in a deployment.

    Its pad lies south of the area, and it flies to its start and home at an altitude of its own.
    """

    def __init__(self, environment: MissionEnvironment, uav: int, clock: Clock) -> None:
        self._lattice, self._clock = environment.lattice, clock
        self._settings = settings = environment.config.deployment
        self._level = transit_altitude(uav, float(self._lattice.altitudes[-1]), settings)
        self._pad = np.array([settings.pad_distance * uav, -2 * settings.separation, 0.0])
        self._stops, self._times = self._pad[None], [0.0]

    def take_off(self, place: Place) -> None:
        """Take off and fly to the first place; see `Vehicle`."""
        self._fly_above(self._metres(place))

    def go_to(self, place: Place) -> None:
        """Fly to a place; see `Vehicle`."""
        self._fly(self._metres(place))

    def hold(self) -> None:
        """Stop at once; see `Vehicle`."""
        self._fly()

    def return_home(self) -> None:
        """Fly home and land; see `Vehicle`."""
        if not self.status().landed:
            self._fly_above(self._pad)

    def arrived(self) -> bool:
        """Return whether the vehicle is at rest; see `Vehicle`."""
        return bool(self._clock.now() >= self._times[-1])

    def status(self) -> Status:
        """Return the position without error, and a full battery; see `Vehicle`."""
        x, y, z = self.position.tolist()
        landed = self.arrived() and bool((self.position == self._pad).all())
        return Status(self._clock.now(), (x, y, z), 1.0, landed=landed, attitude=(0.0, 0.0, 0.0))

    @property
    def position(self) -> Point:
        """True position [m], [3]."""
        now = self._clock.now()
        return np.array([np.interp(now, self._times, along) for along in self._stops.T])

    def _metres(self, place: Place) -> Point:
        metres: Point = self._lattice.metres(torch.tensor(place)).double().numpy()
        return metres

    def _fly_above(self, goal: Point) -> None:
        up, across = self.position.copy(), goal.copy()
        up[2] = across[2] = self._level
        self._fly(up, across, goal)

    def _fly(self, *goals: Point) -> None:
        self._stops = np.stack((self.position, *goals))
        legs = leg_seconds(self._stops[:-1], self._stops[1:], self._settings)
        self._times = (self._clock.now() + np.concatenate(([0.0], legs.cumsum()))).tolist()


class World:
    """A mission that pilots fly, the first of an evaluation seed, and the messages on their way.

    `environment` has one mission, on the CPU.

    Attributes:
        reset, steps: draws for the start of the mission and its moves.
        start: the mission after its first readings, as the simulator starts it.
        number: number of the mission, which its messages carry.
        clock: clock of the simulation.
        sent: all messages sent so far.
    """

    def __init__(self, environment: MissionEnvironment, seed: int) -> None:
        streams = MissionStreams(environment, seed)
        self.environment, self.seed, self.reset = environment, seed, streams.draw_reset()
        self.steps = [streams.draw_step() for _ in range(environment.episode_length)]
        self.start = environment.reset(self.reset)
        everything = config_to_dict(environment.config)
        shared = {section: everything[section] for section in _SHARED}
        settings = environment.config.deployment
        if settings.origin is not None:  # vehicles may be real
            shared["origin"] = [round(angle, 6) for angle in settings.origin]  # to 0.1 m
            shared["apart"] = settings.separation, settings.pad_distance
            shared["files"] = files_read(environment.config)
        self.number = zlib.crc32(format_yaml(shared).encode()) << 32 | seed
        self.clock = SimulatedClock()
        self.sent: list[bytes] = []
        self.starts: list[Place] = [(x, y, z) for x, y, z in self.start.positions[0].tolist()]
        self._places: dict[tuple[int, int], Place] = {}
        self._draws = [self.reset.first, *self.steps]
        self._lost = self._lose_messages()
        self._scratch = self.start.clone()

    def _lose_messages(self) -> Tensor:
        """Return whether each message from UAV j to UAV i is lost, at [move, i, j]."""
        state, lost = self.start.clone(), []
        radio = self.environment.radio
        for move, draws in enumerate(self._draws):
            lost.append(radio.lost(state, draws.communication, first=move == 0))
            if radio.has_bursts:
                state.lossy.copy_(lost[-1])
        return torch.cat(lost)

    def read(self, uav: int, place: Place, move: int) -> Bits:
        """Return the reading that a UAV takes at a place after `move` moves."""
        self._places[uav, move] = place
        state, draws = self._scratch, self._draws[move]
        env, state.positions[0, uav] = self.environment, torch.tensor(place)
        frames = env.disturbances.frames(state, draws)
        if frames is not None and not frames[0, uav]:
            return np.zeros((0, 0), np.bool_)
        shift = env.disturbances.shift(state, draws)
        view = env.fusion.view(state, torch.ones(1, dtype=torch.bool))
        env.fusion.read(state, view, draws.sensor, shift)
        return cut(env.camera, place, state.readings[0, uav])

    def hears(self, uav: int, message: Message) -> bool | None:
        """Return whether a UAV hears a message that range and loss may cut.

        It depends on the places of both UAVs after as many moves, see `mission.radio.hear`; None
        means that the receiver has not read after so many moves yet.
        """
        sender, move = message.envelope.sender, message.envelope.move
        place = self._places.get((uav, move))
        if place is None:
            return None
        metres = self.environment.lattice.metres(torch.tensor([[place, message.place]]))
        lost = self._lost[move][[uav, sender]][:, [uav, sender]]
        return bool(hear(metres, self.start.communication_range, lost.unsqueeze(0))[0, 0, 1])


class SimulatedCamera:
    """The camera of one UAV of a `World`."""

    def __init__(self, world: World, uav: int) -> None:
        self._world, self._uav = world, uav

    def take(self, place: Place, move: int) -> Bits:
        """Return the reading at a place; see `Camera`."""
        return self._world.read(self._uav, place, move)


class MissionRadio:
    """A radio of one UAV of a `World`, cut by the range and the losses of the mission.

    Positions always arrive. Readings and plans of UAVs that are ahead wait until this UAV has made
    as many moves. Without another `radio`, all UAVs of the world fly in this process.
    """

    def __init__(self, world: World, uav: int, radio: Radio | None = None) -> None:
        self._world, self._uav, self._radio = world, uav, radio or _SharedRadio(world.sent)
        self._early: list[bytes] = []

    def send(self, data: bytes) -> None:
        """Send a message to all others."""
        self._radio.send(data)

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived since the last call."""
        arrived, waiting, self._early = [], self._early + self._radio.receive(), []
        for data in waiting:
            arrives = self._arrives(data)
            if arrives:
                arrived.append(data)
            elif arrives is None:
                self._early.append(data)
        return arrived

    def _arrives(self, data: bytes) -> bool | None:
        try:
            message = decode(data)
        except DamagedError:
            return True  # for the inbox to count
        sender = message.envelope.sender
        shape = self._world.environment.lattice.shape
        foreign = sender >= len(self._world.starts) or any(map(ge, message.place, shape))
        if isinstance(message, Position) or foreign:  # for the inbox to count
            return sender != self._uav
        return sender != self._uav and self._world.hears(self._uav, message)


class _SharedRadio:
    """Radio of UAVs that share a list of all messages."""

    def __init__(self, sent: list[bytes]) -> None:
        self.send, self._sent, self._next = sent.append, sent, 0

    def receive(self) -> list[bytes]:
        new, self._next = self._sent[self._next :], len(self._sent)
        return new


def simulated_hardware(
    world: World, uav: int, log: Log, clock: Clock | None = None, radio: Radio | None = None
) -> Hardware:
    """Return the hardware of a UAV in a world, by default with the clock and radio of the world."""
    clock = clock or world.clock
    vehicle, camera = SimulatedVehicle(world.environment, uav, clock), SimulatedCamera(world, uav)
    return Hardware(vehicle, camera, MissionRadio(world, uav, radio), clock, log)
