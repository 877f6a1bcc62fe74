"""Teams in the published simulator, tried on a miniature of it (see `stand_in`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marl_framework
from benchmarks.reference import published_simulator as benchmark
from benchmarks.reference.published_code import ALIAS, PublishedCode
from benchmarks.reference.published_flights import PLANES, Bridge, Situation, World, flown_config
from benchmarks.reference.published_simulator import CORRECTED, GAIN, RANDOM, SHARED, Flights
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.runs.checkpoint import save_checkpoint
from tests.benchmarks.reference.stand_in import SOURCES, write_clone
from tests.benchmarks.running import read_strict, refusal_of
from tests.small import random_actions, small_config

OBSERVATION = {"uncertainty": True, "centred_entropy": True}
FAR = {"communication_range": 12}  # so that UAVs hear some of the others
LOSSY = {"failure_rate": 0.4}
FLOWN = small_config(agents=3, uav=FAR, compute={"device": "cpu"})


def trained(seed: int) -> Config:
    return small_config(
        agents=2, pixels=(6, 6), seed=seed, observation=OBSERVATION, compute={"device": "cpu"}
    )


TRAINED = trained(3)


def write_team(path: Path, config: Config = TRAINED) -> Path:
    team = COMAWrapper(config, config.network_sizes, "cpu")
    tree = {**team.state_dict(), "config": config_to_dict(config), "training_step": 7}
    save_checkpoint(path, tree)
    return path


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return write_clone(tmp_path, FLOWN)


def flights(clone: Path, *names: str, **world: str) -> Flights:
    return Flights(World(PublishedCode(clone), **world), names, [])


# Imports ----------------------------------------------------------------------------------


def test_the_clone_is_loaded_beside_our_package_and_stays_as_it_is(clone: Path) -> None:
    before = sorted(clone.rglob("*"))
    with torch.autograd.set_detect_anomaly(False):
        code = PublishedCode(clone)
        assert not torch.is_anomaly_enabled()
    baseline = code.module("IG_baseline")
    assert baseline.__name__ == f"{ALIAS}.IG_baseline"
    assert baseline.AgentStateSpace is code.get("agent.state_space")
    assert baseline.lattice is code.module("mapping.mappings").lattice  # imported in both ways
    assert baseline.constants is code.module("constants")
    assert baseline.utils is sys.modules[f"{ALIAS}.utils"]
    assert code.module("utils.plotting").place() == "marl_framework"
    assert sys.modules["marl_framework"] is marl_framework
    assert "IG_baseline" not in sys.modules
    assert sorted(clone.rglob("*")) == before


def test_what_was_replaced_in_a_clone_is_gone_when_it_is_loaded_again(clone: Path) -> None:
    World(PublishedCode(clone), "mixed", "corners")
    space = PublishedCode(clone).get("agent.state_space")
    assert space.get_random_agent_state.__module__ == f"{ALIAS}.agent.state_space"


# Its maps in our state --------------------------------------------------------------------


def situation(env: MissionEnvironment, state: Any) -> Situation:
    """Export a mission of ours in the published layout."""
    camera = env.camera
    index = camera.window_index(camera.footprint(state.positions))
    likelihood = camera.likelihood(state.readings, state.positions).flatten(2)
    sent = torch.full_like(state.beliefs, 0.5).flatten(2).scatter(2, index, likelihood)
    return Situation(
        t=int(state.t[0]),
        positions=env.lattice.metres(state.positions)[0].numpy().round().astype(int),
        beliefs=state.beliefs[0].double().numpy(),
        readings=sent.view_as(state.beliefs)[0].numpy(),
        heard=state.heard[0].numpy(),
        global_belief=state.global_belief[0].numpy(),
        truth=state.truth[0].double().numpy(),
    )


def test_a_mission_of_ours_in_their_layout_gives_back_our_observation() -> None:
    config = small_config(agents=4, pixels=(12, 10), uav=FAR, observation=OBSERVATION)
    env, bridge = MissionEnvironment(config, 1, "cpu"), Bridge(config)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    state = env.reset(env.draw_reset())
    bridge.state(situation(env, state))
    for _ in range(3):
        actions = random_actions(env, state, env.generator)
        env.step(state, actions, env.draw_step())
        shown = bridge.state(situation(env, state))
        env.refresh(state)
        assert not state.heard.all()
        for name, tensor in state.tensors():
            torch.testing.assert_close(getattr(shown, name), tensor, rtol=0, atol=0, msg=name)
        assert torch.equal(builder.actor(shown), builder.actor(state))


# Flights ----------------------------------------------------------------------------------


def test_planes_agree_and_a_difference_is_found(tmp_path: Path) -> None:
    lossy = small_config(agents=3, uav=LOSSY)
    exact = flights(write_clone(tmp_path, lossy), "random")
    exact.fly("random", 3)
    assert max(exact.differences.values()) < 1e-5
    assert tuple(exact.differences) == PLANES
    wrong = SOURCES["coma_wrapper.py"].replace("readings = [log", "readings = [1 - log")
    other = flights(write_clone(tmp_path, lossy, coma_wrapper=wrong), "random")
    other.fly("random", 3)
    assert [name for name, apart in other.differences.items() if apart > 1e-5] == ["local_entropy"]


def test_the_corrected_planner_that_shares_flies_as_ours_does(clone: Path) -> None:
    both = flights(clone, SHARED, "information_gain")
    for trial in (1, 2, 3):
        assert both.fly(SHARED, trial) == both.fly("information_gain", trial)
    assert both.fly(SHARED, 1) != both.fly(CORRECTED, 1)


def test_a_single_uav_needs_the_corrected_probability_alone(tmp_path: Path) -> None:
    alone = flights(write_clone(tmp_path, small_config(agents=1, budget=8)), "information_gain")
    assert alone.fly(CORRECTED, 2) == alone.fly("information_gain", 2)
    assert alone.fly(CORRECTED, 2) != alone.fly(GAIN, 2)


def test_policies_do_not_feel_each_other(tmp_path: Path) -> None:
    clone = write_clone(tmp_path, small_config(agents=3, uav=LOSSY))
    one, two = flights(clone, "information_gain"), flights(clone, "information_gain")
    both = [one.fly(CORRECTED, 2), one.fly("information_gain", 2)]
    assert [two.fly("information_gain", 2), two.fly(CORRECTED, 2)] == both[::-1]
    assert one.fly(CORRECTED, 3) != both[0]


def test_a_map_is_computed_once_for_all_policies(clone: Path) -> None:
    code = PublishedCode(clone)
    all_of_them = Flights(World(code), [], [])
    for name in (GAIN, CORRECTED, RANDOM):
        all_of_them.fly(name, 4)
    assert code.get("mapping.simulations").drawn == 1


# The world --------------------------------------------------------------------------------


def test_facts_are_those_of_the_code(tmp_path: Path) -> None:
    facts = World(PublishedCode(write_clone(tmp_path, FLOWN))).facts(range(1, 60))
    assert len(facts["first_uav_starts"]) == 1  # its seed is a product with the UAV's number
    assert facts["missions_with_shared_starts"] > 0
    assert (facts["last_rows_never_seen"], facts["last_columns_never_seen"]) == (0, 0)
    assert facts["undecided_counts_as_found"] is True
    changed = {
        "constants": SOURCES["constants.py"].replace("EDGE = 0", "EDGE = 1"),
        "utils_utils": SOURCES["utils/utils.py"].replace("> 0.5", "> 0.501"),
    }
    code = PublishedCode(write_clone(tmp_path, FLOWN, **changed))
    facts = World(code, starts="random").facts(range(1, 60))
    assert len(facts["first_uav_starts"]) > 9
    assert facts["missions_with_shared_starts"] == 0
    assert (facts["last_rows_never_seen"], facts["last_columns_never_seen"]) == (1, 1)
    assert facts["undecided_counts_as_found"] is False


def test_corners_are_where_the_published_code_has_them(tmp_path: Path) -> None:
    config = small_config(agents=4, dims=(50, 50))
    starts = World(PublishedCode(write_clone(tmp_path, config)), starts="corners").starts(1)
    assert starts.tolist() == [[10, 10, 15], [40, 10, 15], [40, 40, 15], [10, 40, 15]]


def test_mixed_terrain_is_of_all_kinds(clone: Path) -> None:
    def kinds(terrain: str) -> set[float]:
        world = World(PublishedCode(clone), terrain)
        return {float(np.mean(world.flight(k).mapping.simulated_map)) for k in range(1, 40)}

    assert len(kinds("mixed")) == 5
    assert len(kinds("split")) == 1


# The command ------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_the_command_prints_a_table_and_writes_json(clone: Path, capsys) -> None:
    team = write_team(clone.parent / "team.pt")
    names = ["learned", GAIN, RANDOM, "coverage"]
    arguments = ["--src", str(clone), "--checkpoint", str(team), "--missions", "3", "--seed", "5"]
    out = clone.parent / "out"
    assert benchmark.main([*arguments, "--policies", ",".join(names), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    (path,) = out.iterdir()
    assert printed.splitlines()[-1] == str(path)
    found = read_strict(path)
    assert found["suite"] == "published_simulator"
    assert found["settings"]["training_steps"] == [7]
    assert found["settings"]["configuration"]["experiment"]["missions"]["n_agents"] == 3
    assert found["settings"]["configuration"]["observation"]["uncertainty"] is True
    assert found["machine"]["versions"]
    assert list(found["policies"]) == names
    for policy in found["policies"].values():
        assert [row["trial"] for row in policy["missions"]] == [5, 6, 7]
        assert {row["roi_entropy"][0] for row in policy["missions"]} == {1.0}
        assert {len(row["f1"]) for row in policy["missions"]} == {FLOWN.missions.episode_length + 1}
        last = [row["roi_entropy"][-1] for row in policy["missions"]]
        summary = policy["summary"]["roi_entropy"]
        assert summary["mean"] == pytest.approx(np.mean(last))
        others = [row["roi_entropy"][-1] for row in found["policies"][GAIN]["missions"]]
        assert summary["difference"] == pytest.approx(np.mean(last) - np.mean(others))
        assert f"{summary['mean']:.3f} ± {np.std(last, ddof=1):.3f}" in printed
    assert max(found["observation_differences"].values()) < 1e-5
    assert list(found["observation_differences"]) == list(PLANES)
    assert "UAV 0 starts at (" in printed


@pytest.mark.usefixtures("quick")
def test_all_training_seeds_fly_all_missions(clone: Path) -> None:
    seeds = [write_team(clone.parent / f"{seed}.pt", trained(seed)) for seed in (3, 4)]

    def flown(name: str, *teams: Path) -> dict[str, Any]:
        out = clone.parent / name
        arguments = ["--src", str(clone), "--missions", "3", "--policies", f"learned,{GAIN}"]
        checkpoints = ",".join(map(str, teams))
        assert benchmark.main([*arguments, "--checkpoint", checkpoints, "--out", str(out)]) == 0
        return read_strict(next(out.iterdir()))["policies"]

    both = flown("both", *seeds)
    rows = both["learned"]["missions"]
    assert [(row["trial"], row["team"]) for row in rows] == [
        (k, t) for k in (1, 2, 3) for t in (0, 1)
    ]
    alone = [flown(f"alone{k}", team)["learned"] for k, team in enumerate(seeds)]
    for k, each in enumerate(alone):
        finals = [row["f1"][-1] for row in each["missions"]]
        assert [row["f1"][-1] for row in rows if row["team"] == k] == finals
    means = [each["summary"]["f1"]["mean"] for each in alone]
    assert means[0] != means[1]
    assert both["learned"]["summary"]["f1"]["mean"] == pytest.approx(np.mean(means))


REFUSED = {
    "no clone": (["--src", "{base}"], "give a clone of https://"),
    "no team": (["--checkpoint", "{base}/none"], "none"),
    "no team named": (["--policies", "learned"], "--checkpoint: give a trained team"),
    "policy": (["--policies", "fast"], "--policies fast: choose from learned"),
    "missions": (["--missions", "0"], "--missions 0: must lie in 1 …"),
    "seed": (["--seed", "0"], "--seed 0: must lie in 1 …"),
    "terrain": (["--terrain", "rough"], "--terrain: invalid choice: 'rough'"),
    "out": (["--out", "{base}/ipp-marl/marl_framework/constants.py"], "constants.py"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(arguments, said, clone: Path, capsys) -> None:
    given = [text.format(base=clone.parent) for text in arguments]
    error = refusal_of(
        benchmark, capsys, "--src", str(clone), "--policies", GAIN, "--missions", "1", *given
    )
    assert said in error


def module(name: str, old: str, new: str) -> dict[str, str]:
    assert old in SOURCES[f"{name}.py"]
    return {name.replace("/", "_"): SOURCES[f"{name}.py"].replace(old, new)}


BROKEN = {
    "package": (
        module("utils/utils", "import numpy as np", "from sklearn_is_not_here.metrics import f1"),
        "its code needs the package sklearn_is_not_here; install it with: pip install sklearn_is",
    ),
    "module": (module("coma_wrapper", "grid_maps", "maps"), "it has no module mapping.maps"),
    "name": (module("random_baseline", "class Random", "class Other"), "RandomBaseline"),
    "syntax": (module("constants", "import os", "import"), "cannot be imported"),
    "terrain": (
        module("mapping/ground_truths", "environment_type_idx = 0", "environment_type_idx = 1"),
        "has no line `environment_type_idx = 0`",
    ),
    "sensor": (
        module("sensors/models/sensor_models", "0.265", "0.3"),
        "has noise at these altitudes 0.01, 0.265, 0.375; the published simulator 0.01, 0.3, 0.375",
    ),
}


@pytest.mark.parametrize(("changed", "said"), BROKEN.values(), ids=BROKEN)
def test_a_clone_that_does_not_fit_is_refused(changed, said, tmp_path: Path, capsys) -> None:
    clone = write_clone(tmp_path, FLOWN, **changed)
    arguments = ["--src", str(clone), "--policies", GAIN, "--terrain", "mixed"]
    error = refusal_of(benchmark, capsys, *arguments)
    assert error.startswith("error: --")
    assert said in error


OTHER_TEAMS = {
    "lattice": (small_config(dims=(40, 30)), "has lattice 9 x 7 x 3; the published simulator 7 x"),
    "actions": (small_config(actions=4), "has num_actions 4; the published simulator 6"),
    "altitude": (small_config(max_altitude=10), "has lattice 7 x 7 x 2;"),
    "sensor": (
        small_config(sensor={"model": {"table": {5: 0.01, 15: 0.3}}}),
        "has noise at these altitudes 0.01, 0.155, 0.3; the published simulator 0.01, 0.265",
    ),
    "camera": (
        small_config(sensor={"field_of_view": {"angle_x": 50}}),
        "has opening angles [degrees] 50, 60;",
    ),
}


@pytest.mark.parametrize(("trained", "said"), OTHER_TEAMS.values(), ids=OTHER_TEAMS)
def test_a_team_of_another_world_is_refused(trained, said, clone: Path, capsys) -> None:
    team = write_team(clone.parent / "team.pt", trained)
    error = refusal_of(benchmark, capsys, "--src", str(clone), "--checkpoint", str(team))
    assert error.startswith(f"error: --checkpoint {team}: the team ")
    assert said in error


def test_the_published_params_are_flown_without_a_warning(clone: Path) -> None:
    params = clone / "marl_framework" / "params.yaml"
    with params.open("a", encoding="utf-8") as file:
        file.write("classification: {n_episodes: 300}\n")  # unused by us
    assert flown_config(PublishedCode(clone), None) == FLOWN
