"""Dry flights with random faults at random times: `python -m tests.soak.dry_flights 10000`.

Prints how the UAVs ended, the least distance between two of them, and flights that broke a rule.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from marl_framework.flying.decision import MakePlanner
from marl_framework.flying.messages import decode, encode
from marl_framework.flying.simulated import World
from marl_framework.mission.environment import MissionEnvironment
from tests.flying.dry import config_of, maker
from tests.flying.faults import Faults, Flight

SEPARATION = 5.0
_OFF_WAY = re.compile("is .* m off its way")
_LONGEST = 7200.0  # simulated time after which a flight counts as stuck [s]

Values = dict[str, Any]


class Outcome(NamedTuple):
    """How a flight ended."""

    ends: list[str]
    """Why each UAV left the mission."""
    closest: float
    """Least distance of two UAVs in the air [m]."""
    broken: str | None
    """Rule that was broken, if any."""


class Event(NamedTuple):
    """A change of what is wrong."""

    time: float
    """Simulated time [s]."""
    name: str
    change: Callable[[Flight], None]


class Soak:
    """Teams for dry flights; environments and planners are made once."""

    def __init__(self, folder: Path) -> None:
        self._teams: list[tuple[MissionEnvironment, MakePlanner]] = []
        sizes = [(2, 10.0), (3, 10.0), (3, 20.0), (4, 20.0)]
        for number, ((agents, metres), policy) in enumerate(
            (size, policy) for size in sizes for policy in ("random", "information_gain")
        ):
            config = config_of(
                folder,
                agents=agents,
                dims=(metres, metres),
                max_altitude=10.0,
                missions={"start": "corners"},
                uav={"communication_range": float("inf")},
            )
            environment = MissionEnvironment(config, 1, "cpu", "test")
            (folder / str(number)).mkdir()
            self._teams.append((environment, maker(policy, config, folder / str(number))))

    def fly(self, seed: int) -> Outcome:
        """Fly one mission with up to three faults."""
        rng = random.Random(seed)
        environment, make = rng.choice(self._teams)
        flight = Flight(World(environment, seed), make, SEPARATION)
        latency = rng.choice([0.0, 0.0, 0.8])
        for faults in flight.faults:
            faults.latency = latency
        events = sorted(_draw_events(rng, len(flight.pilots)), key=lambda event: event.time)
        while not flight.over and flight.world.clock.now() < _LONGEST:
            while events and flight.world.clock.now() >= events[0].time:
                events.pop(0).change(flight)
            flight.step()
        return _judge(flight)


def _draw_events(rng: random.Random, team: int) -> Iterator[Event]:
    dead = False
    for _ in range(rng.randrange(4)):
        uav, start = rng.randrange(team), rng.uniform(0, 250)
        end = start + rng.choice([rng.uniform(0.5, 15), rng.uniform(15, 90), 1e9])
        name = rng.choice(list(_FAULTS))
        if name == "pilot dies" and dead:
            continue  # two autopilots that return by themselves may meet
        dead |= name == "pilot dies"
        values = _FAULTS[name](rng, team)

        def begin(flight: Flight, uav: int = uav, values: Values = values) -> None:
            for key, value in values.items():
                setattr(flight.faults[uav], key, value)

        def cease(flight: Flight, uav: int = uav, values: Values = values) -> None:
            faults, normal = flight.faults[uav], Faults(latency=flight.faults[uav].latency)
            for key in values.keys() - {"dead", "controlled", "battery"}:
                setattr(faults, key, getattr(normal, key))

        yield Event(start, name, begin)
        yield Event(end, name, cease)
    if rng.random() < 0.2:
        yield Event(rng.uniform(0, 250), "noise", lambda flight: _send_noise(flight, rng))
    if rng.random() < 0.1:
        yield Event(rng.uniform(0, 250), "abort", lambda flight: _abort(flight, rng))


_FAULTS: dict[str, Callable[[random.Random, int], Values]] = {
    "position jumps": lambda rng, team: {
        "jump": (rng.choice([-20.0, 20.0]), rng.choice([0.0, -20.0, 20.0]))
    },
    "no position": lambda rng, team: {"position": False},
    "no telemetry": lambda rng, team: {"telemetry": False},
    "battery drops": lambda rng, team: {"battery": rng.choice([0.24, 0.2])},
    "camera is silent": lambda rng, team: {"camera": False},
    "clock is wrong": lambda rng, team: {"clock": rng.uniform(-5, 5)},
    "sends to few": lambda rng, team: {
        "unheard_by": set(rng.sample(range(team), rng.randint(1, team)))
    },
    "hears few": lambda rng, team: {
        "hears_not": set(rng.sample(range(team), rng.randint(1, team)))
    },
    "alone": lambda rng, team: {
        "unheard_by": set(range(team)),
        "hears_not": set(range(team)),
    },
    "pilot dies": lambda rng, team: {"dead": True},
    "taken over": lambda rng, team: {"controlled": False},
}


def _send_noise(flight: Flight, rng: random.Random) -> None:
    """Send bytes, a damaged, a foreign and an old message, and one with the number of the UAV."""
    sent = flight.world.sent
    if sent:
        old = decode(rng.choice(sent))
        foreign = old.envelope._replace(mission=old.envelope.mission ^ 1)
        messages = [
            rng.randbytes(60),
            encode(old)[:-1],
            encode(type(old)(foreign, *list(vars(old).values())[1:])),
            *([encode(old)] if rng.random() < 0.5 else []),
        ]
        for faults in flight.faults:
            faults.foreign += messages


def _abort(flight: Flight, rng: random.Random) -> None:
    uav = rng.randrange(len(flight.pilots))
    if not flight.faults[uav].dead:
        flight.pilots[uav].abort("aborted by hand")


def _judge(flight: Flight) -> Outcome:
    ends, broken = [], None
    for uav, pilot in enumerate(flight.pilots):
        dead = flight.faults[uav].dead
        ends.append("pilot died" if dead and pilot.end is None else pilot.end or "no reason")
        if not dead and (not pilot.over or pilot.end is None):
            broken = f"UAV {uav + 1} is still {pilot.phase.value}"
    if not flight.over:
        broken = "stuck"
    if flight.closest < SEPARATION - 1e-6:
        broken = f"{flight.closest:.2f} m apart"
    if flight.outside > 1e-6:
        broken = f"{flight.outside:.2f} m outside"
    return Outcome(ends, flight.closest, broken)


def main(number: int, first: int = 0) -> int:
    """Fly missions and print a table, also when interrupted; return the exit code."""
    ends: Counter[str] = Counter()
    broken, closest, flown = 0, float("inf"), 0
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        soak = Soak(Path(folder))
        for seed in range(first, first + number):
            outcome = soak.fly(seed)
            flown += 1
            ends.update(_OFF_WAY.sub("is off its way", end) for end in outcome.ends)
            closest = min(closest, outcome.closest)
            if outcome.broken:
                broken += 1
                print(f"flight {seed}: {outcome.broken}", flush=True)
    print(f"{flown} flights, {broken} broke a rule, closest approach {closest:.2f} m")
    for end, count in ends.most_common():
        print(f"{count:7} {end}")
    return bool(broken)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*map(int, sys.argv[1:3])))
