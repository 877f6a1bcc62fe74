"""The pilot of one UAV: it takes off, reads, hears, decides, announces, flies, and returns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from marl_framework.flying.decision import Decider
from marl_framework.flying.knowledge import Knowledge
from marl_framework.flying.messages import (
    Envelope,
    Inbox,
    Message,
    Place,
    Plan,
    Position,
    Reading,
    Stage,
    encode,
)
from marl_framework.flying.peers import GRACE, Peers
from marl_framework.flying.protocols import Hardware, Status
from marl_framework.flying.safety import Way, vehicle_problem

_HEARTBEAT = 1.0  # longest time between two positions [s]
_PATIENCE = 30  # message timeouts to wait for a first message: vehicles get ready meanwhile


class Phase(Enum):
    """What a pilot is doing."""

    WAITING = "waiting for its take-off"
    STARTING = "flying to its start"
    FLYING = "flying"
    HEARING = "hearing"
    DECIDING = "deciding"
    LEAVING = "waiting for its return"
    RETURNING = "returning"
    DONE = "done"


_STAGES = {
    Phase.WAITING: Stage.WAITING,
    Phase.STARTING: Stage.STARTING,
    Phase.LEAVING: Stage.LEAVING,
    Phase.RETURNING: Stage.RETURNING,
    Phase.DONE: Stage.LANDED,
}
_ABORTS = {Stage.LEAVING: Stage.ABORTING, Stage.RETURNING: Stage.RECALLING}
_OFF_MISSION = Phase.LEAVING, Phase.RETURNING, Phase.DONE


class Pilot:
    """Flies one UAV of a team; call `advance` until the flight is `over`.

    UAVs take off in the order of their numbers, once all have been heard. After each move the pilot
    reads, sends its reading and then its position, and waits for the positions of all others. Then
    it fuses what it heard, waits for the announcements of UAVs with lower numbers, and decides. At
    the end, or when something is wrong, UAVs return one after the other.

    `mission` is the number of the mission, and `return_seconds` an upper bound of the time of a
    return [s]; both are the same for the team.

    Attributes:
        phase: what the pilot is doing.
        move: number of moves made.
        place: place of the last reading, or the start.
        goal: where the UAV flies next; None while it has not decided.
        knowledge: what the UAV knows.
        reading: newest reading of the UAV; unset before the first.
        inbox: messages from others.
        peers: state of the other UAVs.
        end: why the UAV left the mission; None before.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        decider: Decider,
        mission: int,
        hardware: Hardware,
        return_seconds: float,
    ) -> None:
        environment, uav = knowledge.environment, knowledge.uav
        team, self._limits = environment.n_agents, environment.config.flying
        self._uav, self._mission, self._last_move = uav, mission, environment.episode_length
        self._others = [j for j in range(team) if j != uav]
        self._vehicle, self._camera, self._radio, self._clock, self._log_entry = hardware
        self.knowledge, self._decider = knowledge, decider
        self.inbox = Inbox(mission, uav, team, environment.lattice.shape)
        self.peers = Peers(uav, team, self.inbox, self._limits, return_seconds)
        self.phase, self.move, self.place = Phase.WAITING, 0, knowledge.place(uav)
        self.goal: Place | None = None
        self.end: str | None = None
        self._status = Status(0.0, None, 1.0, landed=True)
        self._number, self._last_beat = 0, -math.inf
        self._since = math.inf  # start of the wait for others, a frame, a turn, or of a hold
        self._held, self._aborts, self._missed = "", False, 0
        self._holds = 0.0  # duration of earlier holds in the present move
        self._began = 0.0  # start of the present phase
        limits = self._limits
        self._longest_leg = limits.longest_hold + limits.camera_timeout + 2 * return_seconds
        self._steps = {
            Phase.WAITING: self._wait,
            Phase.STARTING: self._read,
            Phase.FLYING: self._read,
            Phase.HEARING: self._hear,
            Phase.DECIDING: self._decide,
            Phase.LEAVING: self._leave,
            Phase.RETURNING: self._return,
        }

    def advance(self) -> bool:
        """Do what can be done now; return whether anything was done."""
        before = self.phase
        if before is not Phase.DONE:
            self._listen()
            self._status = self._vehicle.status()
            if not self._status.controlled:
                self._stop("taken over")
                self._begin(Phase.DONE)
            elif before in _OFF_MISSION or self._is_safe():
                self._steps[before]()
            if self._clock.now() >= self._last_beat + _HEARTBEAT and not self.over:
                self._send_position()
        return self.phase is not before

    @property
    def over(self) -> bool:
        """Whether the flight has ended."""
        return self.phase is Phase.DONE

    def abort(self, reason: str) -> None:
        """End the mission for the whole team: all UAVs return; without effect if it is over."""
        if self._aborts or self.over:  # a vehicle that was taken over may still be in the air
            return
        self._aborts = True
        if self.phase in _OFF_MISSION:
            self._send_position()
        else:
            self._stop(reason)

    # Steps of a mission -------------------------------------------------------------------

    def _wait(self) -> None:
        """Take off once all have been heard and those with lower numbers are at their starts."""
        earlier = self.peers.waits_for(range(self._uav))
        ready = all(self.inbox.has_arrived(uav, 0) for uav in earlier)
        if ready and not self.peers.unheard() and self.peers.way_is_free(self._clock.now()):
            self._vehicle.take_off(self.place)
            self._begin(Phase.STARTING)

    def _read(self) -> None:
        """Take a reading after the arrival, and send it with the position."""
        if not self._vehicle.arrived():
            self._since = self._clock.now()
            return
        place, move = self.goal or self.place, self.move + (self.goal is not None)
        bits = self._camera.take(place, move)
        if bits is None and self._clock.now() < self._since + self._limits.camera_timeout:
            return
        self._missed = 0 if bits is not None else self._missed + 1
        self._holds = 0.0
        self.place, self.move, self.goal = place, move, None
        if bits is None:
            bits = np.zeros((0, 0), np.bool_)
            self._log("no frame")
        reading = Reading(self._envelope(), place, bits)
        self.reading = replace(reading, caution=self.knowledge.learn(reading))
        self._send(self.reading)
        self._begin(Phase.HEARING)
        self._send_position()

    def _hear(self) -> None:
        if self._waits_for(self._others):
            return
        heard = self.knowledge.fuse(self.reading, self.inbox)
        self.inbox.forget(self.move - 1)
        self._log("fused", place=self.place, heard=heard)
        self._begin(Phase.DECIDING)
        if self.move == self._last_move:
            self._stop("mission done")

    def _decide(self) -> None:
        if self._waits_for(range(self._uav)):
            return
        for uav in self._others:
            if plan := self.inbox.get(Plan, uav, self.move - (uav > self._uav)):
                self._decider.hear(uav, plan.left)
        state = self.knowledge.state
        for uav in set(self._others) - self.peers.waits_for(self._others):
            state.active[0, uav] = False  # as after a crash in the simulator
        announced = {uav: self.inbox.announced(uav, self.move) for uav in range(self._uav)}
        action, chosen, refusal = self._decider.decide(state, self._ways(), announced)
        self.goal = self.place if refusal else chosen
        if refusal:
            self._log("refused", reason=refusal, action=action, next=chosen)
        else:
            self._log("decided", action=action, next=chosen)
        if (left := self._decider.plan) is not None:
            self._send(Plan(self._envelope(), self.place, left))
        self._begin(Phase.FLYING)
        self._send_position()
        self._vehicle.go_to(self.goal)

    def _leave(self) -> None:
        """Return in turn, or at once if the battery does not last."""
        now = self._clock.now()
        others_know = now >= self._since + GRACE
        if self._status.landed:
            if others_know:
                self._land()
        elif self._status.battery < self._limits.min_battery / 2 or (
            others_know and self.peers.way_is_free(now)
        ):
            self._vehicle.return_home()
            self._begin(Phase.RETURNING)

    def _return(self) -> None:
        if self._status.landed:
            self._land()

    def _land(self) -> None:
        self._log("landed")
        self._begin(Phase.DONE)
        self._send_position()

    # Safety -------------------------------------------------------------------------------

    def _is_safe(self) -> bool:
        """Return whether the mission may go on now; else hold or leave."""
        now = self._clock.now()
        if lost := self.peers.update(now):
            self._log("lost", uavs=sorted(lost))
            self._send_position()
        if reason := self._reason_to_leave(now):
            self._stop(reason)
        elif problem := self._problem(now):
            self._hold(problem, now)
        elif self._held:
            self._resume()
        return not self._held and self.phase not in _OFF_MISSION

    def _reason_to_leave(self, now: float) -> str | None:
        if self.peers.aborts:
            return "another UAV aborts the mission"
        if self._uav in self.inbox.impostors:
            return "another UAV has the same number"
        if self._status.battery < self._limits.min_battery:
            return "battery is low"
        if self.phase is Phase.WAITING and self.peers.unheard():
            # They may have ended; and others may wait in the air for this UAV.
            self._since = min(self._since, now)
            if now >= self._since + _PATIENCE * self._limits.message_timeout:
                return "some UAVs have never been heard"
        under_way = self.phase in (Phase.STARTING, Phase.FLYING)
        if under_way and now > self._began + self._longest_leg:  # such as one that does not arm
            return "does not arrive"
        return "camera is silent" if self._missed >= self._limits.missed_frames else None

    def _problem(self, now: float) -> str | None:
        if self.phase is Phase.WAITING and self.peers.unheard():
            return None
        way = None
        if self.phase not in (Phase.WAITING, Phase.STARTING):
            metres = self._decider.rules.metres
            way = metres[self.place], metres[self.goal or self.place]
        return vehicle_problem(self._status, now, way, self._limits) or self.peers.problem()

    def _hold(self, problem: str, now: float) -> None:
        if not self._held:
            self._held, self._since = problem, now
            self._log("hold", reason=problem)
            if self.phase is not Phase.WAITING:
                self._vehicle.hold()
            self._send_position()
        elif self._holds + now - self._since >= self._limits.longest_hold:
            self._stop(problem)

    def _resume(self) -> None:
        self._log("resume", reason=self._held)
        now = self._clock.now()
        self._holds += now - self._since
        self._held, self._since = "", now
        if self.phase is Phase.STARTING:
            self._vehicle.take_off(self.place)
        elif self.phase is not Phase.WAITING:
            self._vehicle.go_to(self.goal or self.place)

    def _stop(self, reason: str) -> None:
        """Leave the mission for good."""
        self.end, self._held = reason, ""
        self._log("leave", reason=reason)
        phase, controlled, landed = Phase.LEAVING, self._status.controlled, self._status.landed
        if controlled and self.phase is Phase.STARTING:  # it must not stop on the ways of others
            self._vehicle.return_home()  # on the ground this cancels the take-off
            phase = Phase.LEAVING if landed else Phase.RETURNING
        elif controlled and not landed:
            self._vehicle.hold()
        self._begin(phase)
        self._send_position()

    # Helpers ------------------------------------------------------------------------------

    def _listen(self) -> None:
        for data in self._radio.receive():
            message = self.inbox.put(data, self.move)
            if isinstance(message, Position):
                self.peers.hear(message, self._clock.now())

    def _waits_for(self, uavs: Iterable[int]) -> bool:
        return any(not self._is_known(uav) for uav in self.peers.waits_for(uavs))

    def _is_known(self, uav: int) -> bool:
        """Return whether a UAV has sent what the present phase needs, or has moved on."""
        if self.phase is Phase.HEARING:
            return self.inbox.has_arrived(uav, self.move)
        announced = self.inbox.announced(uav, self.move) is not None
        return announced or self.inbox.has_arrived(uav, self.move + 1)

    def _ways(self) -> dict[int, Way]:
        ways = {}
        for uav, position in sorted(self.inbox.positions.items()):
            # One that is a move ahead is already where this move leads it.
            reached = position.place if position.envelope.move > self.move else None
            if position.stage is not Stage.LANDED:
                ways[uav] = Way(position.place, position.next or reached, uav in self.peers.lost)
        return ways

    def _begin(self, phase: Phase) -> None:
        self._began = now = self._clock.now()
        self.phase, self._since = phase, now

    def _envelope(self) -> Envelope:
        self._number += 1
        return Envelope(self._mission, self._uav, self.move, self._clock.now(), self._number)

    def _send_position(self) -> None:
        stage = _STAGES.get(self.phase, Stage.HOLDING if self._held else Stage.FLYING)
        if self._aborts:
            stage = _ABORTS.get(stage, stage)
        lost = frozenset(self.peers.lost)
        self._send(Position(self._envelope(), self.place, self.goal, stage, lost))
        self._last_beat = self._clock.now()

    def _send(self, message: Message) -> None:
        self._radio.send(encode(message))

    def _log(self, event: str, **facts: Any) -> None:
        common = {"time": round(self._clock.now(), 3), "uav": self._uav, "move": self.move}
        self._log_entry({**common, "event": event, **facts})
