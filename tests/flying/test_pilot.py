"""What pilots do when others are silent, messages are bad, or a move is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.deployment.hazards import segment_distances
from marl_framework.flying.dry_run import fly
from marl_framework.flying.messages import Position, Reading, decode, encode
from marl_framework.flying.simulated import InProcessRadio
from tests.flying.dry import config_of, maker, team

EVERYBODY = {"uav": {"communication_range": float("inf")}}
CROWDED = {"dims": (10.0, 10.0), "max_altitude": 5.0, "actions": 4, "budget": 12}  # 3 x 3 places
FIRST, LAST = 2, 5  # moves after which UAV 2 is silent


class SilentRadio(InProcessRadio):
    """Sends nothing of UAV 2 after the moves FIRST to LAST."""

    def send(self, data: bytes) -> None:
        sender, move = decode(data).envelope[1:3]
        if sender != 1 or not FIRST <= move <= LAST:
            super().send(data)


class BadRadio(InProcessRadio):
    """Delivers each message twice, with a damaged one and a foreign one in between."""

    def receive(self) -> list[bytes]:
        received = []
        for data in super().receive():
            message = decode(data)
            foreign = message.envelope._replace(mission=message.envelope.mission ^ 1)
            other = encode(type(message)(foreign, *list(vars(message).values())[1:]))
            received += [data, data[:-1], other, data]
        return received


def flight(tmp_path: Path, **options: Any) -> tuple[Any, ...]:
    config = config_of(tmp_path, **EVERYBODY)
    world, pilots, record = team(config, maker("information_gain", config, tmp_path), **options)
    return fly(world, pilots), world, pilots, record


def test_the_team_goes_on_without_a_silent_uav_and_hears_it_again(tmp_path: Path) -> None:
    flown, world, pilots, record = flight(tmp_path, make_radio=SilentRadio)
    moves = world.environment.episode_length
    assert [pilot.move for pilot in pilots] == 3 * [moves]
    losses = [entry for entry in record if entry["event"] == "lost"]
    assert {entry["uav"] for entry in losses} == {0, 2}
    assert {entry["move"] for entry in losses} == {FIRST}
    assert all(entry["uavs"] == [1] for entry in losses)
    for uav in (0, 2):
        hears = [1 in moment.heard for moment in flown.moments[uav]]
        silent = [FIRST <= move <= LAST for move in range(moves + 1)]
        assert [not heard for heard in hears] == silent
        assert pilots[uav].lost == set()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("announces", [True, False])
def test_the_place_of_a_lost_uav_is_not_entered(tmp_path: Path, seed: int, announces: bool) -> None:
    class Mute(InProcessRadio):
        """Sends nothing of UAV 2, except for its first announcement."""

        def send(self, data: bytes) -> None:
            sender, move = decode(data).envelope[1:3]
            if sender != 1 or (announces and move == 0):
                super().send(data)

    config = config_of(tmp_path, **EVERYBODY, **CROWDED)
    make = maker("random", config, tmp_path)
    world, pilots, record = team(config, make, seed=seed, make_radio=Mute)
    fly(world, pilots)
    name = "next" if announces else "place"
    (last,) = [e[name] for e in record if e["uav"] == 1 and e["move"] == 0 and name in e]
    others = [e for e in record if e["uav"] != 1 and e["move"] >= announces]
    assert {e["event"] for e in others} >= {"fused", "decided", "lost"}
    assert last not in [e["next"] for e in others if e["event"] == "decided"]


def test_bad_messages_change_nothing_and_are_counted(tmp_path: Path) -> None:
    good, world, *_ = flight(tmp_path)
    bad, _, pilots, _ = flight(tmp_path, make_radio=BadRadio)
    assert bad.moments == good.moments
    for uav, pilot in enumerate(pilots):
        count = sum(decode(data).envelope.sender != uav for data in world.sent)
        # The last announcements may still be on their way when a pilot is done.
        assert pilot.inbox.dropped.keys() == {"damaged", "foreign", "double"}
        assert len(set(pilot.inbox.dropped.values())) == 1
        assert 0 < pilot.inbox.dropped["double"] <= count


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("separation", [0.0, 5.0])
def test_ways_are_apart_and_a_refused_move_is_not_flown(
    tmp_path: Path, separation: float, seed: int
) -> None:
    config = config_of(tmp_path, **EVERYBODY, **CROWDED)
    make = maker("random", config, tmp_path)
    world, pilots, record = team(config, make, seed=seed, separation=separation)
    flown = fly(world, pilots)
    for entry in (entry for entry in record if entry["event"] == "refused"):
        places = flown.moments[entry["uav"]]
        stays = places[entry["move"]].place, places[entry["move"] + 1].place
        assert stays[0] == stays[1] != entry["next"]
    places = torch.tensor([[moment.place for moment in uav] for uav in flown.moments])
    metres = world.environment.lattice.metres(places).numpy()
    nearest = min(
        segment_distances(a[:-1], a[1:], b[:-1], b[1:]).min()
        for a, b in itertools.combinations(metres, 2)
    )
    assert (nearest >= 5.0) == (separation > 0)


def test_a_reading_of_another_shape_is_not_fused(tmp_path: Path) -> None:
    class Cropping(InProcessRadio):
        """Cuts a row off the readings of UAV 2."""

        def send(self, data: bytes) -> None:
            message = decode(data)
            if isinstance(message, Reading) and message.envelope.sender == 1:
                data = encode(Reading(message.envelope, message.place, message.bits[1:]))
            super().send(data)

    flown, *_ = flight(tmp_path, make_radio=Cropping)
    assert not any(1 in moment.heard for uav in (0, 2) for moment in flown.moments[uav])


def test_positions_are_never_cut(tmp_path: Path) -> None:
    config = config_of(tmp_path, uav={"communication_range": 0.0})
    world, pilots, record = team(config, maker("information_gain", config, tmp_path))
    flown = fly(world, pilots)
    assert {entry["event"] for entry in record} == {"fused", "decided"}
    assert all(moment.heard == (uav,) for uav in range(3) for moment in flown.moments[uav])
    radio = InProcessRadio(world, 0)
    kinds = {type(decode(data)) for data in radio.receive()}
    assert kinds == {Position}


def test_flights_are_reproducible(tmp_path: Path) -> None:
    first, world, _, record = flight(tmp_path)
    again, other, _, repeated = flight(tmp_path)
    assert record == repeated
    assert world.sent == other.sent
    assert first.moments == again.moments
