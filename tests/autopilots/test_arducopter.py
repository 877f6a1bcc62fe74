"""Teams fly with ArduCopter as in the simulator, keep apart, and land; see docs/fly.md."""

from __future__ import annotations

import itertools
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marl_framework.deployment.flight_plans import open_plan
from marl_framework.flying.dry_run import make_world, simulate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.terrains.geotiff import place_at
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import load_team, mission_config
from tests.autopilots.copters import Array, Copter
from tests.flying.dry import SEED
from tests.flying.processes import addresses, fly_apart

PROGRAM = os.environ.get("ARDUCOPTER", "")
SPEED = os.environ.get("AUTOPILOT_SPEED", "1")
TOLERANCE = 1.0  # of distances: two position errors [m]
ORIGIN, HOME = (48.0, 11.0), (47.9998, 11.0)
pytestmark = [
    pytest.mark.autopilots,
    pytest.mark.skipif(not PROGRAM, reason="needs ARDUCOPTER=…/build/sitl/bin/arducopter"),
]


@pytest.mark.parametrize(
    ("agents", "policy"), [(2, "information_gain"), (4, "learned"), (4, "search")]
)
def test_a_team_flies_as_the_simulator(tmp_path: Path, agents: int, policy: str) -> None:
    team = load_team("pretrained:student")
    values = {
        "experiment.missions.n_agents": agents,
        "experiment.missions.start": "corners",
        "experiment.constraints.budget": 6,
        "deployment.origin": list(ORIGIN),
        "deployment.home": list(HOME),
    }
    words = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    config, place = mission_config(None, words, team), place_at(*ORIGIN)
    environment = MissionEnvironment(config, 1, "cpu", "test")
    copters: list[Copter] = []
    with ExitStack() as stack:

        def own(uav: int, port: int) -> list[str]:
            home = open_plan(environment, place, uav - 1).home
            copter = Copter(Path(PROGRAM), tmp_path / f"copter{uav}", uav, home, place, SPEED)
            stack.callback(copter.stop)
            copter.start()
            copters.append(copter)
            return [*addresses(uav, port), "--vehicle", copter.address]

        options = ["--policy", policy, "--checkpoint", "pretrained:student"]
        options += ["--separation", str(config.deployment.separation)]
        flown = fly_apart(tmp_path, config, options, own, patience=1500)
    planner = make_planner(policy, environment, team)
    assert flown == simulate(make_world(environment, SEED), planner, SEED).moments

    tracks = [copter.track for copter in copters]
    for uav, track in enumerate(tracks, 1):
        results = json.loads((tmp_path / f"uav{uav}" / "summary.json").read_text())["results"]
        assert results["uav"]["left"] == "mission done"
        assert results["uav"]["refused"] == 0
        assert abs(track[-1, 3]) < 0.3  # it has landed
    apart, errors = least_distance(tracks), reading_errors(tmp_path, tracks, environment)
    seconds = max(track[-1, 0] for track in tracks) - min(track[0, 0] for track in tracks)
    print(f"{policy}, {agents} UAVs: {seconds:.0f} s at speed {SPEED}, {len(errors)} readings")
    print(f"least distance {apart:.2f} m, largest position error {max(errors):.2f} m")
    assert apart > config.deployment.separation - TOLERANCE
    assert max(errors) < config.deployment.acceptance_radius + TOLERANCE / 2


def least_distance(tracks: list[Array]) -> float:
    """Return the least distance of two UAVs of which one is in the air [m]."""
    start, end = max(track[0, 0] for track in tracks), min(track[-1, 0] for track in tracks)
    times = np.arange(start, end, 0.05)
    places = [at(track, times) for track in tracks]
    return min(
        float(np.linalg.norm(a - b, axis=1)[np.maximum(a[:, 2], b[:, 2]) > 0.5].min())
        for a, b in itertools.combinations(places, 2)
    )


def at(track: Array, times: Array) -> Array:
    """Return the true positions at some times [m], [T, 3]."""
    return np.stack([np.interp(times, track[:, 0], along) for along in track.T[1:]], axis=1)


def reading_errors(
    folder: Path, tracks: list[Array], environment: MissionEnvironment
) -> list[float]:
    """Return the distance of each true position from the place of its reading [m]."""
    reader: Any = pytest.importorskip("mcap.reader")
    errors = []
    for uav, track in enumerate(tracks, 1):
        with (folder / f"uav{uav}" / "flight.mcap").open("rb") as file:
            topics = [f"/uav{uav}/calls"]
            for _, _, message in reader.make_reader(file).iter_messages(topics):
                call = json.loads(message.data)
                if call["call"] == "take":
                    goal = environment.lattice.metres(torch.tensor(call["args"][0])).numpy()
                    here = at(track, np.array([message.log_time / 1e9]))[0]
                    errors.append(float(np.linalg.norm(here - goal)))
    return errors
