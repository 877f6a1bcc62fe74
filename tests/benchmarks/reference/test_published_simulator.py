"""Teams in the published simulator, tested on a miniature of it (see `stand_in`)."""

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
from tests.benchmarks.running import read_strict
from tests.small import random_actions, small_config

OBSERVATION = {"uncertainty": True, "centred_entropy": True}
FAR = {"communication_range": 12}  # so that UAVs hear some of the others
LOSSY = {"failure_rate": 0.4}
CPU = {"device": "cpu"}
FLOWN = small_config(agents=3, uav=FAR, compute=CPU)


def write_team(path: Path, seed: int = 3, config: Config | None = None) -> Path:
    config = config or small_config(
        agents=2, pixels=(6, 6), seed=seed, observation=OBSERVATION, compute=CPU
    )
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


def test_replacements_in_a_clone_are_gone_when_it_is_loaded_again(clone: Path) -> None:
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


def test_a_mission_of_ours_in_their_layout_has_our_observation() -> None:
    config = small_config(agents=4, pixels=(12, 10), uav=FAR, observation=OBSERVATION)
    env, bridge = MissionEnvironment(config, 1, "cpu"), Bridge(config)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    state = env.reset()
    bridge.state(situation(env, state))
    for _ in range(3):
        actions = random_actions(env, state, env.generator)
        env.step(state, actions)
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


def test_policies_do_not_influence_each_other(tmp_path: Path) -> None:
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


def command(clone: Path, *arguments: str | Path) -> list[str]:
    return ["--src", str(clone), "--missions", "3", *map(str, arguments)]


@pytest.mark.usefixtures("quick")
def test_all_training_seeds_fly_all_missions(clone: Path, capsys) -> None:
    teams = [write_team(clone.parent / f"{seed}.pt", seed) for seed in (3, 4)]
    names = ["learned", GAIN, RANDOM, "coverage"]

    def flown(name: str, *teams: Path) -> dict[str, Any]:
        checkpoints = ("--checkpoint", ",".join(map(str, teams)))
        policies = ("--policies", ",".join(names), "--seed", "5")
        out = clone.parent / name
        assert benchmark.main(command(clone, *checkpoints, *policies, "--out", out)) == 0
        (path,) = out.iterdir()
        found: dict[str, Any] = read_strict(path)
        return found

    both = flown("both", *teams)
    printed = capsys.readouterr().out
    assert both["suite"] == "published_simulator"
    assert both["settings"]["training_steps"] == [7, 7]
    configuration = both["settings"]["configuration"]
    assert configuration["experiment"]["missions"]["n_agents"] == 3
    assert configuration["observation"]["uncertainty"] is True
    assert list(both["policies"]) == names
    for name, policy in both["policies"].items():
        rows = policy["missions"]
        seeds = (0, 1) if name == "learned" else (0,)
        assert [(row["trial"], row["team"]) for row in rows] == [
            (trial, team) for trial in (5, 6, 7) for team in seeds
        ]
        assert {row["roi_entropy"][0] for row in rows} == {1.0}
        assert {len(row["f1"]) for row in rows} == {FLOWN.missions.episode_length + 1}
        last = [row["roi_entropy"][-1] for row in rows]
        others = [row["roi_entropy"][-1] for row in both["policies"][GAIN]["missions"]]
        summary = policy["summary"]["roi_entropy"]
        assert summary["mean"] == pytest.approx(np.mean(last))
        assert summary["difference"] == pytest.approx(np.mean(last) - np.mean(others))
        assert f"{summary['mean']:.3f} ± " in printed
    assert max(both["observation_differences"].values()) < 1e-5
    assert list(both["observation_differences"]) == list(PLANES)
    for k, team in enumerate(teams):
        alone = flown(f"alone{k}", team)["policies"]["learned"]["missions"]
        of_both = [row for row in both["policies"]["learned"]["missions"] if row["team"] == k]
        assert [row["f1"] for row in alone] == [row["f1"] for row in of_both]


REFUSED = {
    "no clone": (["--src", "{base}"], "--src"),
    "no team": (["--checkpoint", "{base}/none"], "none"),
    "no team named": (["--policies", "learned"], "--checkpoint"),
    "policy": (["--policies", "fast"], "--policies"),
    "missions": (["--missions", "0"], "--missions"),
    "seed": (["--seed", "0"], "--seed"),
    "terrain": (["--terrain", "rough"], "--terrain"),
    "out": (["--out", "{base}/ipp-marl/marl_framework/constants.py"], "constants.py"),
}


@pytest.mark.parametrize(("arguments", "named"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(arguments, named, clone: Path, refused) -> None:
    given = [text.format(base=clone.parent) for text in arguments]
    assert named in refused(benchmark, *command(clone, "--policies", GAIN, *given))


BROKEN = {
    "package": ("utils/utils", "import numpy", "import no_numpy; import numpy", "no_numpy"),
    "module": ("coma_wrapper", "grid_maps", "maps", "mapping.maps"),
    "name": ("random_baseline", "class Random", "class Other", "RandomBaseline"),
    "syntax": ("constants", "import os", "import", "--src"),
    "terrain": ("mapping/ground_truths", "type_idx = 0", "type_idx = 1", "--terrain mixed"),
    "sensor": ("sensors/models/sensor_models", "0.265", "0.3", "0.265"),
}
"""Module, text that is replaced, and the name in the error."""


@pytest.mark.parametrize(("module", "old", "new", "named"), BROKEN.values(), ids=BROKEN)
def test_a_clone_that_does_not_fit_is_refused(module, old, new, named, tmp_path, refused) -> None:
    text = SOURCES[f"{module}.py"]
    assert old in text
    clone = write_clone(tmp_path, FLOWN, **{module.replace("/", "_"): text.replace(old, new)})
    arguments = command(clone, "--policies", GAIN, "--terrain", "mixed")
    assert named in refused(benchmark, *arguments)


OTHER_TEAMS = {
    "lattice": (small_config(dims=(40, 30)), "lattice 9, 7, 3"),
    "actions": (small_config(actions=4), "num_actions 4"),
    "altitude": (small_config(max_altitude=10), "lattice 7, 7, 2"),
    "sensor": (small_config(sensor={"model": {"table": {5: 0.01, 15: 0.3}}}), "0.155"),
    "camera": (small_config(sensor={"field_of_view": {"angle_x": 50}}), "50, 60"),
}


@pytest.mark.parametrize(("trained", "named"), OTHER_TEAMS.values(), ids=OTHER_TEAMS)
def test_a_team_of_another_world_is_refused(trained, named, clone: Path, refused) -> None:
    team = write_team(clone.parent / "team.pt", config=trained)
    error = refused(benchmark, *command(clone, "--checkpoint", team))
    assert f"--checkpoint {team}" in error
    assert named in error


def test_the_published_params_are_flown_without_a_warning(clone: Path) -> None:
    params = clone / "marl_framework" / "params.yaml"
    with params.open("a", encoding="utf-8") as file:
        file.write("classification: {n_episodes: 300}\n")  # unused by us
    assert flown_config(PublishedCode(clone), None) == FLOWN
