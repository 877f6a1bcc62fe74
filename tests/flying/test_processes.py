"""UAVs in processes of their own, with a real radio, fly as the simulator does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from marl_framework.flying.dry_run import make_world, simulate
from marl_framework.mission.environment import MissionEnvironment
from tests.flying.dry import SEED, config_of, maker
from tests.flying.processes import addresses, fly_apart
from tests.flying.relay import Relay

pytest.importorskip("zenoh")
LOSSY = {"communication_range": 15.0, "failure_rate": 0.3}
FAST = ("--time-factor", "20")


def both(
    folder: Path,
    policy: str,
    agents: int,
    radio: Callable[[int, int], list[str]] = addresses,
    **changes: Any,
) -> None:
    """Fly a team in processes and in the simulator, and compare them."""
    config = config_of(folder, agents=agents, uav=LOSSY, **changes)
    make = maker(policy, config, folder)
    options = ["--policy", policy, "--checkpoint", str(folder / "team.pt"), *FAST]
    flown = fly_apart(folder, config, options, radio)
    environment = MissionEnvironment(config, 1, "cpu", "test")
    world = make_world(environment, SEED)
    simulated = simulate(world, make(environment), SEED).moments
    assert flown == simulated
    assert len({len(moment.heard) for moments in flown for moment in moments}) > 1


@pytest.mark.parametrize(("agents", "policy"), [(2, "learned"), (4, "search")])
def test_processes_fly_as_the_simulator(tmp_path: Path, agents: int, policy: str) -> None:
    both(tmp_path, policy, agents, budget=4)


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
