"""What pilots do when others are silent, messages are bad, or a move is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.deployment.hazards import segment_distances
from marl_framework.flying.dry_run import fly
from marl_framework.flying.messages import Position, Reading, decode, encode
from marl_framework.flying.pilot import Phase
from marl_framework.flying.simulated import MissionRadio
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.completion import make_completion
from marl_framework.planners.protocol import Decision
from tests.flying.dry import NOMINAL, SEED, config_of, maker, team, world_of
from tests.flying.faults import Faults, Flight

EVERYBODY = {"uav": {"communication_range": float("inf")}}
CROWDED = {"dims": (10.0, 10.0), "max_altitude": 5.0, "actions": 4, "budget": 12}  # 3 x 3 places


class BadRadio(MissionRadio):
    """Delivers each message twice, with a damaged one and a foreign one in between."""

    def receive(self) -> list[bytes]:
        received = []
        for data in super().receive():
            message = decode(data)
            foreign = message.envelope._replace(mission=message.envelope.mission ^ 1)
            other = encode(type(message)(foreign, *list(vars(message).values())[1:]))
            received += [data, data[:-1], other, data]
        return received


class LateRadio(MissionRadio):
    """UAV 2 hears UAV 3 so late that UAV 1 has made one more move."""

    def receive(self) -> list[bytes]:
        received, now = super().receive(), self._world.clock.now()
        sent = [decode(data).envelope for data in received]
        late = [self._uav == 1 and each.sender == 2 and now < each.time + 6 for each in sent]
        self._early += itertools.compress(received, late)
        return [data for data, waits in zip(received, late, strict=True) if not waits]


def flight(tmp_path: Path, **options: Any) -> tuple[Any, ...]:
    config = config_of(tmp_path, **EVERYBODY)
    world, pilots, record = team(config, maker("information_gain", config, tmp_path), **options)
    return fly(world, pilots), world, pilots, record


def faulty(
    tmp_path: Path, policy: str = "information_gain", seed: int = SEED, **changes: Any
) -> Flight:
    """Return a team over a world in which only pilots make errors."""
    config = config_of(tmp_path, missions={"start": "corners"}, **{**EVERYBODY, **changes})
    return Flight(world_of(config, seed), maker(policy, config, tmp_path), separation=5.0)


def fly_until(flight: Flight, ready: Callable[[], bool]) -> None:
    """Fly until a condition holds, for at most an hour."""
    while not ready():
        flight.step()
        assert flight.world.clock.now() < 3600


def finish(flight: Flight) -> None:
    """Fly to the end, and check that nobody was too close or outside."""
    fly_until(flight, lambda: flight.over)
    assert flight.closest >= 5.0 - 1e-6
    assert flight.outside <= 1e-6


def test_uavs_start_and_return_one_after_the_other(tmp_path: Path) -> None:
    flight = faulty(tmp_path)
    in_transit: list[set[int]] = []
    while not flight.over:
        flight.step()
        phases = [pilot.phase for pilot in flight.pilots]
        moving = {u for u, p in enumerate(phases) if p in (Phase.STARTING, Phase.RETURNING)}
        if moving and moving not in in_transit[-1:]:
            in_transit.append(moving)
    assert in_transit == [{0}, {1}, {2}, {0}, {1}, {2}]
    assert all(pilot.end == "mission done" for pilot in flight.pilots)
    finish(flight)


def test_uavs_that_hear_everything_learn_the_caution_of_the_team(tmp_path: Path) -> None:
    worse = {"sensor": {"reality": {"miss": 0.1, "false_alarm": 0.1}}}
    config = config_of(tmp_path, **EVERYBODY, **worse)
    world, pilots, _ = team(config, maker("information_gain", config, tmp_path))
    flown = fly(world, pilots, make_completion(config, world.environment.lattice))
    cautions = [pilot.knowledge.noise.caution() for pilot in pilots]
    assert torch.equal(
        torch.stack(cautions, 1), flown.record.metrics["learned_caution"].expand(1, 3)
    )
    assert cautions[0] < 0.9
    assert flown.record.completed is not None


def test_the_team_goes_on_without_a_silent_uav(tmp_path: Path) -> None:
    flight = faulty(tmp_path)
    fly_until(flight, lambda: flight.pilots[1].move == 2)
    flight.faults[1].unheard_by = {0, 2}
    finish(flight)
    assert flight.pilots[1].end == "too few UAVs are heard"
    assert flight.pilots[1].move < 5
    for uav in (0, 2):
        assert flight.pilots[uav].end == "mission done"
        assert flight.pilots[uav].peers.lost == {1}
        fused = [e for e in flight.record if e["uav"] == uav and e["event"] == "fused"]
        assert [1 in entry["heard"] for entry in fused].count(False) >= 2


@pytest.mark.parametrize("fault", [{"battery": 0.24}, {"unheard_by": {0, 2}}])
def test_planners_take_a_uav_that_left_or_is_lost_for_crashed(
    tmp_path: Path, fault: dict[str, Any]
) -> None:
    seen: list[tuple[bool, ...]] = []

    config = config_of(tmp_path, **EVERYBODY)
    make_planner = maker("information_gain", config, tmp_path)

    class Watching:
        name = "watching"

        def __init__(self, environment: MissionEnvironment) -> None:
            self._planner = make_planner(environment)

        def act(self, state: MissionState, generator: torch.Generator) -> Decision:
            seen.append(tuple(state.active[0].tolist()))
            return self._planner.act(state, generator)

    flight = Flight(world_of(config), Watching, separation=0.0)
    fly_until(flight, lambda: flight.pilots[1].move == 2)
    assert set(seen) == {(True, True, True)}
    for name, value in fault.items():
        setattr(flight.faults[1], name, value)
    fly_until(flight, lambda: not any(flight.pilots[j].peers.waits_for([1]) for j in (0, 2)))
    seen.clear()
    fly_until(flight, lambda: flight.over)
    assert len(seen) > 6
    assert set(seen) == {(True, False, True)}


@pytest.mark.parametrize(("size", "seed"), [(15.0, 5), (20.0, 11)])
def test_others_keep_away_from_one_more_move_of_a_silent_uav(
    tmp_path: Path, size: float, seed: int
) -> None:
    flight = faulty(tmp_path, "random", dims=(size, size), seed=seed)
    fly_until(flight, lambda: flight.pilots[0].phase is Phase.FLYING)
    flight.faults[0].unheard_by = {1, 2}
    finish(flight)
    assert flight.pilots[0].move == 2  # of the second, nobody has heard
    assert {pilot.end for pilot in flight.pilots[1:]} == {"mission done"}


def test_the_team_goes_on_without_a_dead_pilot(tmp_path: Path) -> None:
    flight = faulty(tmp_path)
    fly_until(flight, lambda: flight.pilots[0].move == 2)
    flight.faults[0].dead = True
    finish(flight)
    assert [pilot.end for pilot in flight.pilots] == [None, "mission done", "mission done"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"jump": (20.0, 0.0)}, "off its way"),
        ({"telemetry": False}, "no telemetry"),
        ({"position": False}, "no position"),
        ({"clock": 3.0}, "clock differs"),
    ],
)
@pytest.mark.parametrize("lasts", [False, True])
def test_a_uav_holds_and_goes_on_or_returns(
    tmp_path: Path, fault: dict[str, Any], reason: str, lasts: bool
) -> None:
    flight, (faults, pilot) = (made := faulty(tmp_path)), (made.faults[1], made.pilots[1])
    fly_until(flight, lambda: pilot.phase is Phase.FLYING)
    for name, value in fault.items():
        setattr(faults, name, value)
    fly_until(flight, lambda: "hold" in flight.events(1))
    if not lasts:
        for name in fault:
            setattr(faults, name, getattr(Faults(), name))
    finish(flight)
    (entry,) = (e for e in flight.record if e["event"] == "hold")
    assert reason in entry["reason"]
    assert entry["uav"] == 1
    assert ("resume" in flight.events(1)) != lasts
    assert ("mission done" if not lasts else reason) in str(pilot.end)
    assert flight.pilots[0].end == flight.pilots[2].end == "mission done"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [({"battery": 0.2}, "battery is low"), ({"camera": False}, "camera is silent")],
)
def test_a_uav_leaves(tmp_path: Path, fault: dict[str, Any], reason: str) -> None:
    flight = faulty(tmp_path)
    fly_until(flight, lambda: flight.pilots[2].move == 1)
    for name, value in fault.items():
        setattr(flight.faults[2], name, value)
    finish(flight)
    ends = [pilot.end for pilot in flight.pilots]
    assert ends == ["mission done", "mission done", reason]
    assert flight.events(2).count("no frame") == (3 if reason == "camera is silent" else 0)


def test_nobody_waits_for_ever_for_a_uav_that_does_not_hear_all(tmp_path: Path) -> None:
    flight = faulty(tmp_path)
    flight.faults[2].hears_not = {1}
    fly_until(flight, lambda: flight.pilots[1].phase is Phase.HEARING)
    assert flight.pilots[2].phase is Phase.WAITING
    finish(flight)
    reason = "some UAVs have never been heard"
    assert [pilot.end for pilot in flight.pilots] == ["mission done", "mission done", reason]


def test_a_uav_returns_at_once_from_the_way_to_its_start(tmp_path: Path) -> None:
    flight = faulty(tmp_path)
    fly_until(flight, lambda: flight.pilots[1].phase is Phase.STARTING)
    fly_until(flight, lambda: flight.vehicles[1].position[2] > 15)
    flight.faults[1].position = False
    fly_until(flight, lambda: flight.pilots[1].end is not None)
    assert flight.pilots[1].phase is Phase.RETURNING
    finish(flight)


@pytest.mark.parametrize("move", [0, 2])
def test_nobody_waits_for_ever_for_a_uav_that_is_stuck(tmp_path: Path, move: int) -> None:
    flight = faulty(tmp_path)
    if move:
        fly_until(flight, lambda: flight.pilots[2].move == move)
    flight.faults[2].stuck = True
    finish(flight)
    ends = [pilot.end for pilot in flight.pilots]
    assert ends == ["mission done", "mission done", "does not arrive"]


def test_an_empty_battery_does_not_wait_for_its_turn(tmp_path: Path) -> None:
    flight = faulty(tmp_path)
    fly_until(flight, lambda: flight.pilots[0].phase is Phase.RETURNING)
    flight.faults[2].battery = 0.1
    flight.step()
    flight.step()
    assert flight.pilots[2].phase is Phase.RETURNING


@pytest.mark.parametrize("move", [None, 3])
def test_an_abort_ends_the_mission_of_all(tmp_path: Path, move: int | None) -> None:
    flight = faulty(tmp_path)
    fly_until(flight, lambda: move is None or flight.pilots[1].move == move)
    flight.step()
    flight.pilots[1].abort("stopped by hand")
    finish(flight)
    other = "another UAV aborts the mission"
    assert [pilot.end for pilot in flight.pilots] == [other, "stopped by hand", other]
    assert all(pilot.move <= (move or 0) + 1 for pilot in flight.pilots)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RETURNING])
def test_an_abort_on_the_way_ends_the_mission_of_all(tmp_path: Path, phase: Phase) -> None:
    flight = faulty(tmp_path)
    if phase is Phase.RETURNING:
        fly_until(flight, lambda: flight.pilots[2].move == 1)
        flight.faults[1].battery = 0.2
    fly_until(flight, lambda: flight.pilots[1].phase is phase)
    flight.step()
    flight.pilots[1].abort("stopped by hand")
    finish(flight)
    other = "another UAV aborts the mission"
    assert flight.pilots[0].end == flight.pilots[2].end == other


def test_an_abort_on_the_ground_cancels_the_take_off(tmp_path: Path) -> None:
    flight, commands = faulty(tmp_path), list[str]()
    vehicle, pilot = flight.vehicles[1], flight.pilots[1]
    for name in ("take_off", "return_home"):  # as if it refused to arm
        setattr(vehicle, name, lambda *_, name=name: commands.append(name))
    fly_until(flight, lambda: pilot.phase is Phase.STARTING)
    pilot.abort("stopped by hand")
    finish(flight)
    assert commands == ["take_off", "return_home"]


@pytest.mark.parametrize("phase", [Phase.HEARING, Phase.LEAVING, Phase.RETURNING])
def test_a_uav_that_is_taken_over_gets_no_more_commands(tmp_path: Path, phase: Phase) -> None:
    flight = faulty(tmp_path)
    fly_until(flight, lambda: flight.pilots[1].phase is phase)
    commands: list[str] = []
    vehicle = flight.vehicles[1]
    flight.faults[1].controlled = False
    for name in ("go_to", "hold", "return_home"):
        setattr(vehicle, name, lambda *_, name=name: commands.append(name))
    finish(flight)
    assert flight.pilots[1].end == "taken over"
    assert commands == []


def test_two_uavs_with_one_number_are_noticed(tmp_path: Path) -> None:
    flight = faulty(tmp_path)
    fly_until(flight, lambda: flight.pilots[0].move == 2)
    twin = next(d for d in flight.world.sent if decode(d).envelope.sender == 1)
    flight.faults[1].foreign.append(twin)
    finish(flight)
    assert flight.pilots[1].end == "another UAV has the same number"
    assert flight.pilots[0].end == flight.pilots[2].end == "mission done"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("announces", [True, False])
def test_the_place_of_a_lost_uav_is_not_entered(tmp_path: Path, seed: int, announces: bool) -> None:
    class Mute(MissionRadio):
        """Sends nothing of UAV 2 after its first reading, or its first announcement."""

        def send(self, data: bytes) -> None:
            message = decode(data)
            silent = message.envelope.move > 0
            if isinstance(message, Position):
                silent |= message.next is not None and not announces
            if message.envelope.sender == 1 and silent:
                return
            super().send(data)

    config = config_of(tmp_path, **EVERYBODY, **CROWDED)
    make = maker("random", config, tmp_path)
    world, pilots, record = team(config, make, seed=seed, radio=Mute)
    fly(world, pilots)
    name = "next" if announces else "place"
    (last,) = [e[name] for e in record if e["uav"] == 1 and e["move"] == 0 and name in e]
    others = [e for e in record if e["uav"] != 1 and e["move"] >= announces]
    assert {e["event"] for e in others} >= {"fused", "decided", "lost"}
    assert last not in [e["next"] for e in others if e["event"] == "decided"]


def test_bad_messages_change_nothing_and_are_counted(tmp_path: Path) -> None:
    good, world, *_ = flight(tmp_path)
    bad, _, pilots, _ = flight(tmp_path, radio=BadRadio)
    assert bad.moments == good.moments
    for uav, pilot in enumerate(pilots):
        count = sum(decode(data).envelope.sender != uav for data in world.sent)
        # The last announcements may still be on their way when a pilot is done.
        assert pilot.inbox.dropped.keys() == {"damaged", "foreign", "double"}
        assert len(set(pilot.inbox.dropped.values())) == 1
        assert 0 < pilot.inbox.dropped["double"] <= count


@pytest.mark.parametrize("policy", ["learned", "information_gain", "search"])
@pytest.mark.parametrize("seed", [14, 15])
def test_late_messages_change_nothing(tmp_path: Path, policy: str, seed: int) -> None:
    changes = {"uav": {"failure_rate": 0.3}, "flying": {"clock_error": 9.0}, **CROWDED}
    config = config_of(tmp_path, **changes)
    make, flown = maker(policy, config, tmp_path), []
    for radio in (MissionRadio, LateRadio):
        world, pilots, _ = team(config, make, seed=seed, radio=radio)
        flown.append(fly(world, pilots).moments)
    assert flown[0] == flown[1]


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
    class Cropping(MissionRadio):
        """Cuts a row off the readings of UAV 2."""

        def send(self, data: bytes) -> None:
            message = decode(data)
            if isinstance(message, Reading) and message.envelope.sender == 1:
                data = encode(Reading(message.envelope, message.place, message.bits[1:]))
            super().send(data)

    flown, *_ = flight(tmp_path, radio=Cropping)
    assert not any(1 in moment.heard for uav in (0, 2) for moment in flown.moments[uav])


def test_positions_are_never_cut(tmp_path: Path) -> None:
    config = config_of(tmp_path, uav={"communication_range": 0.0})
    world, pilots, record = team(config, maker("information_gain", config, tmp_path))
    flown = fly(world, pilots)
    assert {entry["event"] for entry in record} == NOMINAL
    assert all(moment.heard == (uav,) for uav in range(3) for moment in flown.moments[uav])
    radio = MissionRadio(world, 0)
    kinds = {type(decode(data)) for data in radio.receive()}
    assert kinds == {Position}


def test_flights_are_reproducible(tmp_path: Path) -> None:
    first, world, _, record = flight(tmp_path)
    again, other, _, repeated = flight(tmp_path)
    assert record == repeated
    assert world.sent == other.sent
    assert first.moments == again.moments
