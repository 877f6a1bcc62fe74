"""Dry flights with faults: of vehicles, cameras, clocks, radios, and pilots that die."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch

from marl_framework.deployment.schedule import transit_altitude
from marl_framework.flying.decision import MakePlanner
from marl_framework.flying.dry_run import make_pilots, return_seconds
from marl_framework.flying.knowledge import Knowledge
from marl_framework.flying.messages import Bits, Place, decode
from marl_framework.flying.pilot import Phase
from marl_framework.flying.protocols import Camera, Hardware, Radio, Status
from marl_framework.flying.simulated import SimulatedVehicle, World

TICK = 0.25


@dataclass
class Faults:
    """What is wrong with one UAV now."""

    jump: tuple[float, float] = (0.0, 0.0)
    battery: float = 1.0
    telemetry: bool = True
    position: bool = True
    controlled: bool = True
    camera: bool = True
    stuck: bool = False
    """Whether its vehicle neither takes off nor arrives."""
    clock: float = 0.0
    unheard_by: set[int] = field(default_factory=set)
    hears_not: set[int] = field(default_factory=set)
    latency: float = 0.0
    """Longest delay of what it hears [s]."""
    foreign: list[bytes] = field(default_factory=list)
    dead: bool = False
    """Whether the pilot has stopped; its vehicle returns by itself."""


class FaultyVehicle:
    """A simulated vehicle whose telemetry may be wrong."""

    def __init__(self, vehicle: SimulatedVehicle, faults: Faults, clock: FaultyClock) -> None:
        self.vehicle, self._faults, self._clock = vehicle, faults, clock
        self._last = 0.0

    def take_off(self, place: Place) -> None:
        if not self._faults.stuck:
            self.vehicle.take_off(place)

    def go_to(self, place: Place) -> None:
        self.vehicle.go_to(place)

    def hold(self) -> None:
        self.vehicle.hold()

    def return_home(self) -> None:
        self.vehicle.return_home()

    def arrived(self) -> bool:
        return self.vehicle.arrived() and not self._faults.stuck

    def status(self) -> Status:
        status, faults = self.vehicle.status(), self._faults
        if faults.telemetry:
            self._last = self._clock.now()
        assert status.position is not None
        x, y, z = status.position
        dx, dy = faults.jump
        position = (x + dx, y + dy, z) if faults.position else None
        return Status(self._last, position, faults.battery, faults.controlled, status.landed)


class FaultyCamera:
    """A simulated camera that may be silent."""

    def __init__(self, camera: Camera, faults: Faults) -> None:
        self._camera, self._faults = camera, faults

    def take(self, place: Place, move: int) -> Bits | None:
        bits = self._camera.take(place, move)
        return bits if self._faults.camera else None


class FaultyClock:
    """A clock with an offset."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._clock, self._faults = world.clock, faults

    def now(self) -> float:
        return self._clock.now() + self._faults.clock


class FaultyRadio:
    """A simulated radio that loses or delays messages, and hears foreign ones."""

    def __init__(self, radio: Radio, world: World, uav: int, team: list[Faults]) -> None:
        self._radio, self._world, self._uav, self._team = radio, world, uav, team
        self._random = random.Random(uav)
        self._late: list[tuple[float, bytes]] = []
        self.send = radio.send

    def receive(self) -> list[bytes]:
        received, own, now = self._radio.receive(), self._team[self._uav], self._world.clock.now()
        heard = [d for d in received if not self._is_cut(decode(d).envelope.sender)]
        foreign, own.foreign = own.foreign, []
        self._late += [(now + self._random.uniform(0, own.latency), d) for d in heard]
        due = [late for late in self._late if late[0] <= now]
        self._late = [late for late in self._late if late[0] > now]
        return [*(data for _, data in sorted(due)), *foreign]

    def _is_cut(self, sender: int) -> bool:
        unheard_by, hears_not = self._team[sender].unheard_by, self._team[self._uav].hears_not
        return self._uav in unheard_by or sender in hears_not


class Flight:
    """A team of pilots whose hardware may fail, over the world of a seed.

    Attributes:
        faults: what is wrong with each UAV.
        vehicles: true vehicles.
        pilots: pilots of all UAVs.
        record: what the pilots log.
        closest: least distance of two vehicles in the air so far [m].
        outside: largest distance of a vehicle from the area and the pads so far [m].
    """

    def __init__(self, world: World, make: MakePlanner, separation: float) -> None:
        self.world, self.faults = world, [Faults() for _ in world.starts]
        self.vehicles: list[SimulatedVehicle] = []
        self.record: list[dict[str, Any]] = []
        self.pilots = make_pilots(world, make, self.record.append, separation, self._break)
        self.closest, self.outside = np.inf, 0.0
        settings = world.environment.config.deployment
        starts = np.array([vehicle.position for vehicle in self.vehicles])
        metres = world.environment.lattice.metres(torch.tensor(world.environment.lattice.shape) - 1)
        self._low = np.minimum(starts[:, :2].min(0), 0)
        self._high = np.maximum(starts[:, :2].max(0), metres[:2].numpy())
        self._limits = world.environment.config.flying
        self._return = return_seconds(world.environment)
        self._top = transit_altitude(len(starts) - 1, float(metres[2]), settings)
        self._deaths: dict[int, float] = {}

    def _break(self, knowledge: Knowledge, hardware: Hardware) -> Hardware:
        (vehicle, camera, radio, _, log), uav = hardware, knowledge.uav
        assert isinstance(vehicle, SimulatedVehicle)
        faults, clock = self.faults[uav], FaultyClock(self.world, self.faults[uav])
        self.vehicles.append(vehicle)
        return Hardware(
            FaultyVehicle(vehicle, faults, clock),
            FaultyCamera(camera, faults),
            FaultyRadio(radio, self.world, uav, self.faults),
            clock,
            log,
        )

    @property
    def over(self) -> bool:
        """Whether all pilots have ended and all vehicles are on the ground, or taken over."""
        alive = [p for p, faults in zip(self.pilots, self.faults, strict=True) if not faults.dead]
        ended = all(pilot.over for pilot in alive)
        return ended and all(self._is_down(uav) for uav in range(len(self.pilots)))

    def step(self) -> None:
        """Let the pilots do what they can, or time pass, and measure."""
        busy, now = False, self.world.clock.now()
        for uav, pilot in enumerate(self.pilots):
            if not self.faults[uav].dead:
                busy |= pilot.advance()
            elif pilot.phase not in (Phase.WAITING, Phase.RETURNING, Phase.DONE):
                # The autopilot's failsafe; its delay differs between the UAVs.
                died = self._deaths.setdefault(uav, now)
                if now >= died + self._limits.longest_hold + uav * self._return:
                    self.vehicles[uav].return_home()
                    pilot.phase = Phase.RETURNING
        if not busy:
            self.world.clock.advance(TICK)
        positions = np.array([vehicle.position for vehicle in self.vehicles])
        flying = positions[positions[:, 2] > 0]
        for a, b in combinations(flying, 2):
            self.closest = min(self.closest, float(np.linalg.norm(a - b)))
        beyond = np.maximum(self._low - positions[:, :2], positions[:, :2] - self._high)
        above = positions[:, 2].max() - self._top
        self.outside = max(self.outside, float(beyond.max()), float(above))

    def events(self, uav: int) -> list[str]:
        """Return the names of the logged events of a UAV."""
        return [entry["event"] for entry in self.record if entry["uav"] == uav]

    def _is_down(self, uav: int) -> bool:
        return self.vehicles[uav].status().landed or not self.faults[uav].controlled
