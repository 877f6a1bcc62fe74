"""Teams fly with autopilots' own programs as in the simulator, keep apart, and land."""

from __future__ import annotations

import itertools
import json
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from marl_framework.config.geography import place_at
from marl_framework.deployment.flight_plans import open_plan
from marl_framework.flying.dry_run import simulate
from marl_framework.flying.simulated import World
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import load_team, mission_config
from tests.autopilots.programs import PX4, ArduCopter, Program
from tests.flying.dry import SEED
from tests.flying.processes import addresses, fly_apart, moments_of
from tests.flying.tracks import GROUND, at, distance

SPEED = os.environ.get("SPEED", "1")
PROGRAMS: dict[str, type[ArduCopter | PX4]] = {"ardupilot": ArduCopter, "px4": PX4}
NEEDED = {
    "ardupilot": "ARDUCOPTER=/path/to/ardupilot/build/sitl/bin/arducopter",
    "px4": "PX4=/path/to/px4/build/bin/px4",
}
WORDS = ("deployment.origin=[48.0,11.0]", "deployment.home=[47.9998,11.0]")
WORDS += ("experiment.missions.start=corners", "experiment.constraints.budget=6")
WORDS += ("experiment.uav.communication_range=.inf",)


@pytest.mark.autopilots
@pytest.mark.parametrize("autopilot", PROGRAMS)
@pytest.mark.parametrize(
    ("agents", "policy"), [(2, "information_gain"), (4, "learned"), (4, "search")]
)
def test_a_team_flies_as_the_simulator(
    tmp_path: Path, autopilot: str, agents: int, policy: str
) -> None:
    if not (program := os.environ.get(NEEDED[autopilot].partition("=")[0])):
        pytest.skip(f"needs {NEEDED[autopilot]}")
    reader, team = pytest.importorskip("mcap.reader"), load_team("pretrained:student")
    words = [f"experiment.missions.n_agents={agents}", f"deployment.autopilot={autopilot}"]
    config = mission_config(None, [*WORDS, *words], team)
    environment, place = MissionEnvironment(config, 1, "cpu", "test"), place_at(48.0, 11.0)
    programs: list[Program] = []
    with ExitStack() as stack:

        def own(uav: int, port: int) -> list[str]:
            home, folder = open_plan(environment, place, uav - 1).home, tmp_path / f"program{uav}"
            make, path = PROGRAMS[autopilot], Path(program).resolve()
            programs.append(make(path, folder, uav, home, place, SPEED))
            stack.callback(programs[-1].stop)
            return [*addresses(uav, port), "--vehicle", programs[-1].address]

        apart = config.deployment.separation
        words = ["--policy", policy, "--checkpoint", "pretrained:student", "--separation", apart]
        results = fly_apart(tmp_path, config, list(map(str, words)), own, patience=1500)
        flown = [moments_of(each) for each in results]
    planner = make_planner(policy, environment, team)
    assert flown == simulate(World(environment, SEED), planner).moments

    tracks, errors = [program.track for program in programs], []
    for uav, track in enumerate(tracks, 1):
        run = tmp_path / f"uav{uav}"
        results = json.loads((run / "summary.json").read_text())["results"]["uav"]
        assert (results["left"], results["refused"]) == ("mission done", 0)
        assert results["heard"] == results["sent_by_others"] > 0
        assert abs(track[-1, 3]) < GROUND
        with (run / "flight.mcap").open("rb") as file:
            for *_, message in reader.make_reader(file).iter_messages([f"/uav{uav}/calls"]):
                if (call := json.loads(message.data))["call"] == "take":
                    goal = environment.lattice.metres(torch.tensor(call["args"][0])).numpy()
                    here = at(track, np.array([message.log_time / 1e9]))[0]
                    errors.append(float(np.linalg.norm(here - goal)))
    least = min(itertools.starmap(distance, itertools.combinations(tracks, 2)))
    seconds = tracks[0][-1, 0] - tracks[0][0, 0]
    print(f"{autopilot}, {policy}, {agents} UAVs: {seconds:.0f} s at speed {SPEED}")
    print(f"{len(errors)} readings, largest position error {max(errors):.2f} m")
    print(f"least distance {least:.2f} m")
    assert least > apart - 2 * PROGRAMS[autopilot].error
    assert max(errors) < config.deployment.acceptance_radius + PROGRAMS[autopilot].error
