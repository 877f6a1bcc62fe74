"""UAVs in processes of their own, with a real radio, fly as the simulator does, bit for bit."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import place_at
from marl_framework.deployment.flight_plans import open_plan
from marl_framework.flying.dry_run import simulate
from marl_framework.flying.replay import read_record
from marl_framework.mission.environment import MissionEnvironment
from tests.flying.autopilot import Autopilot, Kind
from tests.flying.dry import config_of, maker, world_of
from tests.flying.lossy_network import LossyNetwork, is_possible
from tests.flying.processes import addresses, fly_apart, free_port, moments_of, wait_for
from tests.flying.relay import Relay
from tests.flying.tracks import Array, distance

pytest.importorskip("zenoh")
LOSSY = {"communication_range": 15.0, "failure_rate": 0.3}
FAST = ("--time-factor", "20")


def both(
    folder: Path,
    policy: str,
    agents: int,
    own: Callable[[int, int], list[str]] = addresses,
    words: tuple[str, ...] = FAST,
    namespaces: Sequence[str] = (),
    **changes: Any,
) -> None:
    """Fly a team in processes and in the simulator, and compare them."""
    config = config_of(folder, agents=agents, uav=LOSSY, **changes)
    make = maker(policy, config, folder)
    options = ["--policy", policy, "--checkpoint", str(folder / "team.pt"), *words]
    results = fly_apart(folder, config, options, own, namespaces=namespaces)
    flown = [moments_of(each) for each in results]
    world = world_of(config)
    assert flown == simulate(world, make(world.environment)).moments
    assert len({len(moment.heard) for moments in flown for moment in moments}) > 1


def between(uav: int, port: int) -> list[str]:
    """Return the options of a radio in a namespace of its own."""
    to = [] if uav == 1 else ["--radio", f"tcp/10.9.0.1:{port}"]
    return ["--listen", f"tcp/10.9.0.{uav}:{port}", *to]


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["learned", "search", "information_gain"])
def test_many_processes_fly_as_the_simulator(tmp_path: Path, policy: str) -> None:
    both(tmp_path, policy, 8, budget=12)


@pytest.mark.soak
def test_a_slow_link_changes_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def radio(uav: int, port: int) -> list[str]:
            if uav == 1:
                return addresses(uav, port)
            relay = Relay(port, delay=0.3, spread=0.2)
            stack.callback(relay.close)
            return addresses(uav, relay.port)

        both(tmp_path, "search", 2, radio, budget=5)


@pytest.mark.soak
@pytest.mark.skipif(not is_possible(), reason="needs root and /dev/net/tun")
def test_a_network_that_loses_delays_and_reorders_packets_changes_nothing(tmp_path: Path) -> None:
    patient = {"message_timeout": 120.0, "clock_error": 60.0, "longest_hold": 600.0}
    with LossyNetwork(3, loss=0.3, delay=0.3, spread=0.2) as network:
        names = network.namespaces
        both(tmp_path, "information_gain", 3, between, FAST, names, budget=4, flying=patient)


@pytest.mark.soak
@pytest.mark.skipif(not is_possible(), reason="needs root and /dev/net/tun")
def test_a_uav_that_is_cut_off_for_a_minute_returns_and_the_others_fly_on(tmp_path: Path) -> None:
    moves, words = 12, ("--time-factor", "8", "--policy", "information_gain", "--separation", "5")
    start: dict[str, Any] = {"dims": (20.0, 20.0), "missions": {"start": "corners"}}
    config = config_of(tmp_path, agents=3, budget=moves - 1, **start)
    with LossyNetwork(3, loss=0.0, delay=0.1, spread=0.05) as network:

        def cut_off() -> None:
            wait_for(lambda: "decided" in _events(tmp_path / "uav3"), 60)
            network.cut_off.add(3)
            time.sleep(60)
            network.cut_off.clear()

        partition = threading.Thread(target=cut_off)
        partition.start()
        results = fly_apart(tmp_path, config, words, between, namespaces=network.namespaces)
        partition.join()
    *others, alone = [each["uav"] for each in results]
    assert [(each["left"], each["moves"], each["lost"]) for each in others] == [
        ("mission done", moves, [2])
    ] * 2
    assert alone["left"] == "too few UAVs are heard"
    assert alone["moves"] < moves
    assert all(_events(tmp_path / f"uav{uav}")[-1] == "landed" for uav in (1, 2, 3))
    tracks = [_track(tmp_path / f"uav{uav}") for uav in (1, 2, 3)]
    assert min(itertools.starmap(distance, itertools.combinations(tracks, 2))) >= 5 - 1e-6


def _entries(run: Path, topic: str) -> list[dict[str, Any]]:
    """Return the entries of a topic in the record of a UAV, also while it flies."""
    try:
        _, tapes, _ = read_record(run / "flight.mcap")
    except ConfigError:  # not begun
        return []
    (tape,) = tapes.values()
    return [json.loads(data) for name, data in tape.items if name == topic]


def _events(run: Path) -> list[str]:
    return [entry["event"] for entry in _entries(run, "log")]


def _track(run: Path) -> Array:
    """Return time and position of a UAV, [T, 4]."""
    calls = (entry for entry in _entries(run, "calls") if entry["call"] == "status")
    return np.array([[call["result"][0], *call["result"][1]] for call in calls])


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ardupilot", "px4"])
def test_vehicles_by_mavlink_fly_as_the_simulator(tmp_path: Path, kind: Kind) -> None:
    pytest.importorskip("mavsdk")
    deployment = {"origin": (48.0, 11.0), "home": (47.9998, 11.0), "autopilot": kind}
    config, place = config_of(tmp_path, agents=2, deployment=deployment), place_at(48.0, 11.0)
    environment = MissionEnvironment(config, 1, "cpu", "test")
    with ExitStack() as stack:

        def own(uav: int, port: int) -> list[str]:
            home = place.metres(np.array([open_plan(environment, place, uav - 1).home[::-1]]))[0]
            link = free_port(socket.SOCK_DGRAM)
            autopilot = Autopilot(link, kind, place, (home[0], home[1]))
            autopilot.start()
            stack.callback(autopilot.stop)
            return [*addresses(uav, port), "--vehicle", f"udpin://127.0.0.1:{link}"]

        both(tmp_path, "information_gain", 2, own, (), budget=3, deployment=deployment)
