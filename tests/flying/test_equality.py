"""Pilots that know only what they have read and heard fly as the simulator does, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.flying.dry_run import DryFlight, first_difference, fly, simulate
from marl_framework.flying.pilot import Pilot
from tests.flying.dry import NOMINAL, config_of, maker, team

LOSSY: dict[str, Any] = {"communication_range": 15.0, "failure_rate": 0.3}
BURSTS = LOSSY | {"failure_burst": 3.0, "position_error": {"bias": 3.0, "jitter": 1.0}}
WORLDS: dict[str, dict[str, Any]] = {
    "calm": {"uav": {"communication_range": float("inf")}},
    "lossy": {"uav": LOSSY},
    "rough": {
        "uav": BURSTS,
        "sensor": {"model": {"adapt": True}, "reality": {"factor": 1.5, "lost_frames": 0.3}},
        "mapping": {"prior": 0.3, "caution": 0.8},
        "constraints": {"obstacles": {"number": 2}},
    },
}
PLAIN = {"compute": {"precision": "float32", "compile": False}}


def both(tmp_path: Path, policy: str, **changes: Any) -> tuple[DryFlight, DryFlight, list[Pilot]]:
    config = config_of(tmp_path, **changes)
    make = maker(policy, config, tmp_path)
    world, pilots, record = team(config, make)
    flown = fly(world, pilots)
    assert {entry["event"] for entry in record} == NOMINAL
    return flown, simulate(world, make(world.environment)), pilots


@pytest.mark.parametrize(
    ("agents", "world"), [(4, "calm"), (4, "lossy"), (4, "rough"), (2, "lossy")]
)
@pytest.mark.parametrize("policy", ["learned", "information_gain", "search"])
def test_pilots_fly_as_the_simulator(tmp_path: Path, policy: str, agents: int, world: str) -> None:
    flown, simulated, pilots = both(tmp_path, policy, agents=agents, **WORLDS[world])
    assert first_difference(flown, simulated) is None
    assert flown.scores == simulated.scores
    for name in ("positions", "active", "footprints", "film"):
        assert torch.equal(getattr(flown.record, name), getattr(simulated.record, name))
    assert [pilot.inbox.dropped.total() for pilot in pilots] == agents * [0]
    heard = {len(moment.heard) for moments in flown.moments for moment in moments}
    assert heard == {agents} if world == "calm" else len(heard) > 1


@pytest.mark.parametrize("policy", ["random", "coverage"])
def test_other_planners_fly_as_the_simulator(tmp_path: Path, policy: str) -> None:
    flown, simulated, _ = both(tmp_path, policy, **WORLDS["lossy"])
    assert first_difference(flown, simulated) is None


@pytest.mark.parametrize("policy", ["learned", "information_gain", "search"])
def test_plain_operators_fly_as_the_simulator(tmp_path: Path, policy: str) -> None:
    flown, simulated, _ = both(tmp_path, policy, **WORLDS["lossy"], **PLAIN)
    assert first_difference(flown, simulated) is None


def test_a_team_of_any_size_flies_as_the_simulator(tmp_path: Path) -> None:
    sizes = {"conv_channels": 8, "hidden_dim": 8, "type": "attention", "heads": 2}
    networks = {"actor": sizes, "critic": sizes}
    changes = {"observation": {"heard_uavs": True}, "networks": networks}
    flown, simulated, _ = both(tmp_path, "learned", agents=4, **WORLDS["lossy"], **changes)
    assert first_difference(flown, simulated) is None


@pytest.mark.parametrize("policy", ["learned", "search"])
def test_a_team_in_a_field_flies_as_the_simulator(tmp_path: Path, policy: str) -> None:
    flown, simulated, _ = both(tmp_path, policy, **WORLDS["lossy"], environment={"field": "random"})
    assert flown.record.inside is not None
    assert not flown.record.inside.all()
    assert first_difference(flown, simulated) is None
    assert torch.equal(flown.record.film, simulated.record.film)


def test_a_pilot_knows_no_belief_but_its_own(tmp_path: Path) -> None:
    *_, pilots = both(tmp_path, "learned")
    for uav, pilot in enumerate(pilots):
        known = ~pilot.knowledge.state.beliefs[0].isnan().flatten(1).all(1)
        assert known.nonzero().flatten().tolist() == [uav]
        assert torch.equal(
            pilot.knowledge.state.global_belief,
            torch.zeros_like(pilot.knowledge.state.global_belief),
        )


def test_flights_of_other_draws_differ(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    make = maker("information_gain", config, tmp_path)
    world, pilots, _ = team(config, make)
    flown = fly(world, pilots)
    world.steps[-1].sensor.neg_()
    simulated = simulate(world, make(world.environment))
    difference = first_difference(flown, simulated)
    assert difference is not None
    assert difference.endswith(f"after move {len(world.steps)}")
