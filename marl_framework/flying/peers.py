"""The other UAVs of a team, as one UAV knows them: who takes part, who is lost, who is on its way.

A UAV flies on only with a group that agrees on who is lost, and that is more than half of the UAVs
that took part before; of two halves, the one with the lowest number flies on. So at most one group
flies on, and it knows where all others have stopped.
"""

from __future__ import annotations

from collections.abc import Iterable

from marl_framework.config.flying import FlyingConfig
from marl_framework.flying.messages import Inbox, Position, Stage

GRACE = 2.0
"""Wait before a return, so that others hear of it first; above the delay of messages [s]."""


class Peers:
    """Keeps account of the other UAVs; for `return_seconds` see `Pilot`.

    Attributes:
        lost: UAVs that were silent for too long, or contradicted themselves; they stay lost.
        aborts: whether a UAV wants all to return.
    """

    def __init__(
        self, uav: int, team: int, inbox: Inbox, limits: FlyingConfig, return_seconds: float
    ) -> None:
        self._uav, self._inbox, self._limits = uav, inbox, limits
        self._others = [other for other in range(team) if other != uav]
        self._members = set(range(team))
        self._heard: dict[int, float] = {}
        self._errors: dict[int, float] = {}
        self._stages: dict[int, tuple[Stage, float]] = {}  # and when it began
        # UAVs that do not hear each other return in turn, in the order of their numbers.
        self._longest_return = limits.longest_hold + (team + 1 + uav) * return_seconds
        self.lost: set[int] = set()
        self.aborts = False

    def hear(self, message: Position, now: float) -> None:
        """Note that a UAV has been heard."""
        sender, stage = message.envelope.sender, message.stage
        self.aborts |= stage.aborts
        self._heard[sender] = now
        self._errors[sender] = abs(message.envelope.time - now)
        if sender not in self._stages or self._stages[sender][0] is not stage:
            self._stages[sender] = stage, now

    def unheard(self) -> set[int]:
        """Return the UAVs that have never been heard."""
        return {uav for uav in self._others if uav not in self._heard}

    def update(self, now: float) -> set[int]:
        """Return the UAVs that are lost from now on."""
        silent = {uav for uav in self._present() if self._is_silent(uav, now)}
        deaf = {uav for uav in self._present() if self._uav in self._inbox.positions[uav].lost}
        new = (silent | deaf | self._inbox.impostors) - self.lost - {self._uav}
        self.lost |= new
        return new

    def problem(self) -> str | None:
        """Return why the UAV may not fly on with those that it hears, or None if it may."""
        group = {self._uav, *self._present()}
        members = {uav for uav in self._members if not self._has_left(uav)}
        errors = [self._errors[uav] > self._limits.clock_error for uav in self._present()]
        if 2 * sum(errors) > len(errors):
            return "clock differs from those of the others"
        lost = self.lost & members
        if any(self._inbox.positions[uav].lost & members != lost for uav in self._present()):
            return "others have lost other UAVs"
        if 2 * len(group) < len(members) or (
            2 * len(group) == len(members) and min(members) not in group
        ):
            return "too few UAVs are heard"
        self._members = group
        return None

    def waits_for(self, uavs: Iterable[int]) -> set[int]:
        """Return those of `uavs` that take part in the mission."""
        return set(uavs) & set(self._present())

    def way_is_free(self, now: float) -> bool:
        """Return whether no other UAV is on its way from or to its pad, or is to return first."""
        return not any(self._goes_first(uav, now) for uav in self._others)

    def _present(self) -> list[int]:
        return [
            uav
            for uav in self._others
            if uav in self._heard and uav not in self.lost and not self._has_left(uav)
        ]

    def _has_left(self, uav: int) -> bool:
        position = self._inbox.positions.get(uav)
        return position is not None and position.stage.left

    def _is_silent(self, uav: int, now: float) -> bool:
        return now > self._heard[uav] + self._limits.message_timeout

    def _goes_first(self, uav: int, now: float) -> bool:
        position = self._inbox.positions.get(uav)
        if position is None or position.stage is Stage.LANDED:
            return False
        if self._is_silent(uav, now):  # it returns by itself, see `Vehicle.return_home`
            return now < self._heard[uav] + self._longest_return
        waits = position.stage in (Stage.LEAVING, Stage.ABORTING)
        under_way = position.stage in (Stage.STARTING, Stage.RETURNING, Stage.RECALLING)
        in_time = now < self._stages[uav][1] + self._longest_return  # else its telemetry is lost
        return (under_way and in_time) or (waits and uav < self._uav)
