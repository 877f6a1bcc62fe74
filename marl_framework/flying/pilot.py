"""The pilot of one UAV: it reads, hears, fuses, decides, announces and flies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.flying.frames import fits, lay
from marl_framework.flying.messages import (
    Envelope,
    Inbox,
    Message,
    Place,
    Plan,
    Position,
    Reading,
    encode,
)
from marl_framework.flying.protocols import Camera, Clock, Radio, Vehicle
from marl_framework.flying.safety import Point, Way, refusal
from marl_framework.kernels.cells import uncertainty
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Planner, SharingPlanner

Log = Callable[[dict[str, Any]], None]
_NEVER_FLIPS = -(2**15)  # see `Optics.flip_below`


class AnnouncedLattice(Lattice):
    """Lattice in which UAVs that have announced their next place have no other choice.

    So a planner that decides for all UAVs in order follows what the earlier ones have announced.

    Attributes:
        announced: announced actions, by UAV.
    """

    def __init__(self, config: Config, device: torch.device | str) -> None:
        super().__init__(config, device)
        self.announced: dict[int, int] = {}

    def options(self, state: MissionState) -> Tensor:
        """Return the actions allowed for each UAV; see `Lattice.options`."""
        allowed = super().options(state)
        for uav, action in self.announced.items():
            allowed[:, uav] = False
            allowed[:, uav, action] = True
        return allowed


class Phase(Enum):
    """What a pilot is doing."""

    FLYING = "flying"
    HEARING = "hearing"
    DECIDING = "deciding"
    DONE = "done"


class Pilot:
    """Flies one UAV of a team; call `advance` until `phase` is `DONE`.

    After each move the pilot reads, sends its reading and then its position, and waits for the
    positions of all others. Then it fuses what it heard, waits for the announcements of UAVs with
    lower numbers, and decides. UAVs that it waits for longer than `timeout` are lost to it until
    they are heard again.

    Args:
        uav: index of the UAV, from 0.
        environment: environment of one mission; the pilot uses its lattice, camera and fusion.
        make_planner: creates the planner from an environment.
        state: what the UAV knows at the start; the pilot updates it.
        mission: number of the mission, the same for the team.
        vehicle, camera, radio, clock: hardware of the UAV.
        generator: random generator of the planner, seeded alike for the team.
        timeout: longest wait for the positions of others, and again for their announcements [s].
        separation: see `safety.refusal`.
        log: takes each entry of the record.

    Attributes:
        phase: what the pilot is doing.
        move: number of moves made.
        place: where the UAV is, or flies to.
        state: what the UAV knows; beliefs of the other UAVs are NaN.
        inbox: messages from others.
        lost: UAVs that are not waited for.
    """

    def __init__(
        self,
        uav: int,
        environment: MissionEnvironment,
        make_planner: Callable[[MissionEnvironment], Planner],
        state: MissionState,
        mission: int,
        vehicle: Vehicle,
        camera: Camera,
        radio: Radio,
        clock: Clock,
        generator: torch.Generator,
        timeout: float,
        separation: float = 0.0,
        log: Log = lambda entry: None,
    ) -> None:
        own = copy.copy(environment)
        self._lattice = own.lattice = AnnouncedLattice(own.config, own.device)
        self._planner, self._generator = make_planner(own), generator
        if isinstance(self._planner, SharingPlanner):
            self._planner.own = uav
        self._fusion, self._optics = own.fusion, own.camera
        self._prior, self._last_move = own.config.mapping.prior, own.episode_length
        self._uav, self._mission, self._team = uav, mission, own.n_agents
        self._others = [j for j in range(self._team) if j != uav]
        self._vehicle, self._camera, self._radio, self._clock = vehicle, camera, radio, clock
        self._timeout, self._arrival, self._separation = timeout, 0.0, separation
        self._log_entry = log
        levels = (1, self._lattice.shape[2], 2)
        state.flip_below = torch.full(levels, _NEVER_FLIPS, dtype=torch.int16, device=own.device)
        state.pooled_beliefs.fill_(self._prior)
        if self._fusion.tracks_uncertainty:
            state.pooled_uncertainty.fill_(float(uncertainty(torch.tensor(self._prior))))
        self.state, self.phase, self.move = state, Phase.FLYING, 0
        self.place = self._place_of(uav)
        self.inbox = Inbox(mission, uav, self._team, self._lattice.shape)
        self.lost: set[int] = set()

    def advance(self) -> bool:
        """Do what can be done now; return whether anything was done."""
        if self.phase is Phase.DONE or (self.phase is Phase.FLYING and not self._vehicle.arrived()):
            return False
        if self.phase is Phase.FLYING:
            self._read()
            self.phase = Phase.HEARING
            return True
        self._listen()
        earlier = self._others if self.phase is Phase.HEARING else range(self._uav)
        if self._waits_for(earlier):
            return False
        if self.phase is Phase.DECIDING:
            self._decide()
            self.phase = Phase.FLYING
        else:
            self._fuse()
            self.phase = Phase.DECIDING if self.move < self._last_move else Phase.DONE
        return True

    # Steps of a move ----------------------------------------------------------------------

    def _read(self) -> None:
        bits = self._camera.take(self.place, self.move)
        self._reading = Reading(self._envelope(), self.place, bits)
        self._send(self._reading)
        self._send(Position(self._envelope(), self.place))
        self._arrival = self._clock.now()

    def _listen(self) -> None:
        for data in self._radio.receive():
            self.inbox.put(data, self.move)
        self.lost -= {uav for uav in self.lost if self.inbox.has_arrived(uav, self.move)}

    def _waits_for(self, uavs: Iterable[int]) -> bool:
        missing = {uav for uav in uavs if uav not in self.lost and not self._is_known(uav)}
        # Others may decide only after they have waited for a lost UAV.
        rounds = 1 if self.phase is Phase.HEARING else 2
        if missing and self._clock.now() >= self._arrival + rounds * self._timeout:
            self._log("lost", uavs=sorted(missing))
            self.lost |= missing
            return False
        return bool(missing)

    def _is_known(self, uav: int) -> bool:
        """Return whether a UAV has sent what the present phase needs, or has moved on."""
        if self.phase is Phase.HEARING:
            return self.inbox.has_arrived(uav, self.move)
        announced = self.inbox.announced(uav, self.move) is not None
        return announced or self.inbox.has_arrived(uav, self.move + 1)

    def _fuse(self) -> None:
        """Fuse the UAV's own reading and those heard, with the code of the simulator."""
        state, uav = self.state, self._uav
        state.t.fill_(self.move)
        state.positions[0, uav] = torch.tensor(self.place)
        heard: dict[int, Reading] = {}
        for other in self._others:
            if other in self.inbox.positions:
                newest = torch.tensor(self.inbox.positions[other].place)
                state.positions[0, other] = newest
            reading = self.inbox.get(Reading, other, self.move)
            if reading is not None and fits(self._optics, reading.place, reading.bits):
                heard[other] = reading
                state.positions[0, other] = torch.tensor(reading.place)
        taken = {**heard, uav: self._reading}
        state.heard.copy_(torch.eye(self._team, dtype=torch.bool))
        frames = torch.zeros(1, self._team, dtype=torch.bool)
        for sender, reading in taken.items():
            state.heard[0, uav, sender] = True
            frames[0, sender] = bool(reading.bits.size)
        device = state.positions.device
        view = self._fusion.view(state, frames.new_ones(1).to(device), frames.to(device))
        self._lay_own(view.boxes[0, uav])
        # Read once more, without noise, as this also averages the reading for the observation.
        bits = torch.zeros(1, self._team, *self._optics.window, dtype=torch.int16, device=device)
        self._fusion.read(state, view, bits)
        state.readings.zero_()
        for sender, reading in taken.items():
            state.readings[0, sender] = lay(self._optics, reading.place, reading.bits)
        self._fusion.fuse_own(state, view, prior=None if self.move else self._prior)
        state.beliefs[0, self._others] = torch.nan
        self.inbox.forget(self.move - 1)
        self._log("fused", place=self.place, heard=sorted(taken))

    def _lay_own(self, box: Tensor) -> None:
        """Lay the UAV's own reading into the map that `Fusion.read` reads."""
        rows, cols = self._optics.window
        row, col = box[4:6].tolist()
        window = lay(self._optics, self.place, self._reading.bits)
        self.state.truth[0, row : row + rows, col : col + cols] = window > 0

    def _decide(self) -> None:
        self._lattice.announced = self._announced_actions()
        self._hear_plans()
        with torch.no_grad():
            decision = self._planner.act(self.state, self._generator)
        action = int(decision.actions[0, self._uav])
        goal = self._destination(action)
        entry: dict[str, Any] = {"action": action, "next": goal}
        if reason := self._refusal(goal):
            self._log("refused", reason=reason, **entry)
            goal = self.place
        else:
            self._log("decided", **entry)
        if isinstance(self._planner, SharingPlanner):
            self._send(Plan(self._envelope(), self.place, self._planner.plan.cpu().numpy()))
        self._send(Position(self._envelope(), self.place, goal))
        self._vehicle.go_to(goal)
        self.place, self.move = goal, self.move + 1

    def _hear_plans(self) -> None:
        if not isinstance(self._planner, SharingPlanner):
            return
        for uav in self._others:
            plan = self.inbox.get(Plan, uav, self.move - (uav > self._uav))
            if plan is not None and plan.left.shape == self._lattice.shape[:2]:
                left = torch.from_numpy(plan.left).to(self.state.beliefs.device)
                self._planner.hear(uav, left)

    def _announced_actions(self) -> dict[int, int]:
        """Return the actions that earlier UAVs have announced; a UAV that stays has none."""
        actions: dict[int, int] = {}
        for uav in range(self._uav):
            goal = self.inbox.announced(uav, self.move)
            if goal is not None:
                step = torch.tensor(goal) - self.state.positions[0, uav].cpu()
                same = (self._lattice.offsets.cpu() == step).all(-1)
                if step.any() and same.any():
                    actions[uav] = int(same.int().argmax())
        return actions

    def _refusal(self, goal: Place) -> str | None:
        ways = {}
        for uav in self._others:
            newest = self.inbox.positions.get(uav)
            place = self._place_of(uav) if newest is None else newest.place
            announced = None if newest is None else newest.next
            ways[uav] = Way(place, announced or (place if uav in self.lost else None))
        state = self.state
        allowed = self._lattice.allowed(state.positions, state.moves)[0, self._uav]
        open_goals = {self._destination(int(action)) for action in allowed.nonzero().flatten()}
        return refusal(self.place, goal, open_goals, ways, self._metres, self._separation)

    # Helpers ------------------------------------------------------------------------------

    def _place_of(self, uav: int) -> Place:
        x, y, z = self.state.positions[0, uav].tolist()
        return x, y, z

    def _destination(self, action: int) -> Place:
        x, y, z = (torch.tensor(self.place) + self._lattice.offsets[action].cpu()).tolist()
        return x, y, z

    def _metres(self, place: Place) -> Point:
        metres: Point = self._lattice.metres(torch.tensor(place)).double().cpu().numpy()
        return metres

    def _envelope(self) -> Envelope:
        return Envelope(self._mission, self._uav, self.move, self._clock.now())

    def _send(self, message: Message) -> None:
        self._radio.send(encode(message))

    def _log(self, event: str, **facts: Any) -> None:
        common = {"time": round(self._clock.now(), 3), "uav": self._uav, "move": self.move}
        self._log_entry({**common, "event": event, **facts})
