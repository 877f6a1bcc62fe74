"""A team splits into at most one group that flies on, whatever links are lost."""

from __future__ import annotations

from itertools import combinations, count, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.config.flying import FlyingConfig
from marl_framework.flying.messages import Envelope, Inbox, Position, Stage, encode
from marl_framework.flying.peers import Peers

LIMITS = FlyingConfig()
RETURN = 60.0
Links = set[tuple[int, int]]


class Team:
    """UAVs that send their positions once a second over links (sender, receiver)."""

    def __init__(self, size: int) -> None:
        self.uavs = range(size)
        self.inboxes = [Inbox(1, uav, size, (9, 9, 9)) for uav in self.uavs]
        self.peers = [Peers(uav, size, self.inboxes[uav], LIMITS, RETURN) for uav in self.uavs]
        self.stages = [Stage.FLYING] * size
        self.errors = [0.0] * size
        self.numbers = count()
        self.now = 0.0

    def send(self, links: Links, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for uav in self.uavs:
                self.peers[uav].update(self.now)
            for sender, receiver in links:
                time = self.now + self.errors[sender]
                envelope = Envelope(1, sender, 0, time, next(self.numbers))
                lost = frozenset(self.peers[sender].lost)
                position = Position(envelope, (0, 0, 0), None, self.stages[sender], lost)
                if message := self.inboxes[receiver].put(encode(position), 0):
                    assert isinstance(message, Position)
                    self.peers[receiver].hear(message, self.now)

    def fly_on(self) -> set[int]:
        """UAVs that may fly on."""
        may = {uav for uav in self.uavs if self.peers[uav].problem() is None}
        return {uav for uav in may if not self.stages[uav].left}


def everybody(size: int) -> Links:
    return {(a, b) for a, b in product(range(size), repeat=2) if a != b}


def cut(links: Links, *groups: set[int]) -> Links:
    """Links within groups."""
    return {link for link in links if any(set(link) <= group for group in groups)}


def team(size: int) -> Team:
    made = Team(size)
    made.send(everybody(size), 2)
    assert made.fly_on() == set(range(size))
    return made


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (({0, 1, 2}, {3}), {0, 1, 2}),
        (({0}, {1, 2, 3}), {1, 2, 3}),
        (({0, 1}, {2, 3}), {0, 1}),
        (({1, 2}, {0, 3}), {0, 3}),
        (({0}, {1}, {2}, {3}), set()),
        (({0, 1}, {2}, {3}), {0, 1}),
    ],
)
def test_the_larger_group_flies_on(groups: tuple[set[int], ...], expected: set[int]) -> None:
    flying = team(4)
    flying.send(cut(everybody(4), *groups), 15)
    assert flying.fly_on() == expected


@pytest.mark.parametrize(("lost", "last"), [((0, 2, 1), {1}), ((3, 2, 1), {0}), ((0, 1, 3), {2})])
def test_a_team_that_shrinks_flies_on(lost: tuple[int, ...], last: set[int]) -> None:
    flying, group = team(4), set(range(4))
    for uav in lost:
        group -= {uav}
        flying.send(cut(everybody(4), group), 15)
        assert flying.fly_on() == (group if len(group) > 1 else last)


def test_a_uav_that_others_do_not_hear_is_out() -> None:
    flying = team(3)
    flying.send({(a, b) for a, b in everybody(3) if a != 1}, 15)
    assert flying.fly_on() == {0, 2}
    assert flying.peers[1].lost == {0, 2}


def test_one_that_hears_two_who_do_not_hear_each_other_stops() -> None:
    flying = team(3)
    flying.send(everybody(3) - {(0, 1), (1, 0)}, 15)
    assert flying.fly_on() == set()


def test_a_lost_uav_stays_lost() -> None:
    flying = team(3)
    flying.send(cut(everybody(3), {0, 1}, {2}), 15)
    flying.send(everybody(3), 5)
    assert flying.fly_on() == {0, 1}


@given(st.integers(2, 5), st.data())
def test_at_most_one_group_flies_on(size: int, data: st.DataObject) -> None:
    flying, links = team(size), everybody(size)
    for _ in range(data.draw(st.integers(1, 3))):
        links = links - data.draw(st.sets(st.sampled_from(sorted(everybody(size))), max_size=8))
        flying.send(links, data.draw(st.integers(10, 30)))
        going = flying.fly_on()
        for a, b in combinations(sorted(going), 2):
            assert b not in flying.peers[a].lost
            assert a not in flying.peers[b].lost
        for uav in set(flying.uavs) - going:
            flying.stages[uav] = Stage.LEAVING


@pytest.mark.parametrize(("error", "stops"), [(0.9, False), (-0.9, False), (1.1, True), (-5, True)])
def test_a_uav_whose_clock_differs_from_most_stops(error: float, stops: bool) -> None:
    flying = Team(3)
    flying.errors = [error, 0.0, error]  # as UAV 1 sees them
    flying.send(everybody(3), 2)
    assert (flying.peers[1].problem() is not None) == stops
    flying.errors = [error, 0.0, 0.0]
    flying.send(everybody(3), 2)
    assert flying.peers[1].problem() is None


def test_uavs_return_one_after_the_other() -> None:
    flying = team(3)
    flying.stages = [Stage.LEAVING] * 3
    order = []
    while len(order) < 3:
        flying.send(everybody(3), 2)
        (ready,) = (
            uav
            for uav in flying.uavs
            if uav not in order and flying.peers[uav].way_is_free(flying.now)
        )
        flying.stages[ready] = Stage.RETURNING
        flying.send(everybody(3), 2)
        assert not any(
            flying.peers[uav].way_is_free(flying.now) for uav in flying.uavs if uav != ready
        )
        flying.stages[ready] = Stage.LANDED
        order.append(ready)
    assert order == [0, 1, 2]


@pytest.mark.parametrize("stage", Stage)
def test_nobody_returns_beside_one_that_is_under_way(stage: Stage) -> None:
    flying = team(3)
    flying.stages = [Stage.LEAVING, stage, Stage.FLYING]
    flying.send(everybody(3), 1)
    under_way = stage in (Stage.STARTING, Stage.RETURNING, Stage.RECALLING)
    assert flying.peers[0].way_is_free(flying.now) == (not under_way)


def test_a_uav_that_never_lands_is_waited_for_as_long_as_a_return_may_take() -> None:
    flying = team(2)
    flying.stages = [Stage.LEAVING, Stage.RETURNING]
    free = []
    longest = round(LIMITS.longest_hold + 3 * RETURN)
    for seconds in (1, longest - 20, 21):
        flying.send(everybody(2), seconds)
        free.append(flying.peers[0].way_is_free(flying.now))
    assert free == [False, False, True]


@pytest.mark.parametrize("stage", [Stage.FLYING, Stage.LEAVING, Stage.RETURNING])
def test_a_silent_uav_is_given_the_time_to_return(stage: Stage) -> None:
    flying = team(2)
    flying.stages[1] = stage
    flying.send(everybody(2), 1)
    flying.send(set(), 11)
    assert not flying.peers[0].way_is_free(flying.now)
    longest = LIMITS.longest_hold + 3 * RETURN
    waits = np.array([flying.peers[0].way_is_free(12.0 + s) for s in (longest - 20, longest + 1)])
    assert waits.tolist() == [False, True]


def test_an_abort_is_heard() -> None:
    flying = team(3)
    assert not flying.peers[0].aborts
    flying.stages[2] = Stage.ABORTING
    flying.send({(2, 0)}, 1)
    assert flying.peers[0].aborts
    assert not flying.peers[1].aborts
