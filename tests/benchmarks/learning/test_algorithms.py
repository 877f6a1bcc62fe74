"""Tuning and comparison of algorithms."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.learning import algorithms
from marl_framework.config.loading import config_from_dict, config_to_dict, load_config
from marl_framework.config.parts import ALGORITHMS
from tests.benchmarks.running import run

SETTINGS = ("evaluation.missions=2", "learning.clip_ratio=0.2", "learning.batch_number=1")
TINY = ("--steps", "2", *(part for text in SETTINGS for part in ("--set", text)))
FEW = (*TINY, "--development-seeds", "101", "--seeds", "3")


@pytest.fixture
def two_candidates(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "RATES", ("1e-3",))
    monkeypatch.setattr(algorithms, "DISCOUNTS", (("0.8", "0.5"),))


def test_runs_are_kept_and_more_seeds_add_to_them(tmp_path, two_candidates, monkeypatch, capsys):
    few = (*FEW, "--algorithms", "coma,mappo", "--worlds", "4_uavs_split")
    first = run(algorithms, tmp_path, *few)["runs"]
    assert [(one["world"], one["seed"], one["rows"][-1]["training_step"]) for one in first] == [
        *[("development", 101, 1)] * 4,
        *[("4_uavs_split", 3, 2)] * 2,
    ]
    assert len({one["rows"][-1]["transitions"] for one in first[4:]}) == 1
    made, learn = [], algorithms.learn
    monkeypatch.setattr(algorithms, "learn", lambda *a: made.append(a) or learn(*a))
    second = run(algorithms, tmp_path, *few, "--seeds", "3,4")
    assert len(made) == 2
    assert second["runs"][:6] == first
    assert (tmp_path / "found.png").is_file()
    shown = capsys.readouterr().out
    assert all(name in shown for name in second["chosen"])


def test_every_world_has_the_same_transitions(tmp_path, two_candidates):
    worlds = ("--worlds", "4_uavs_split,8_uavs_mixed", "--set", "environment.num_envs=4")
    runs = run(algorithms, tmp_path, *FEW, "--algorithms", "coma", *worlds)["runs"][2:]
    assert [one["world"] for one in runs] == ["4_uavs_split", "8_uavs_mixed"]
    assert len({one["rows"][-1]["transitions"] for one in runs}) == 1


def runs_of(world: str, first_seed: int, entropies: dict[str, list[float]]) -> list[dict[str, Any]]:
    def rows(entropy: float) -> list[dict[str, float]]:
        early = {"transitions": 100, "cpu_seconds": 40.0, "roi_entropy": 1.0, "f1": 0.0}
        late = {"transitions": 700, "cpu_seconds": 90.0, "roi_entropy": entropy, "f1": 1 - entropy}
        return [early, late]

    return [
        {"variant": variant, "world": world, "seed": seed, "rows": rows(entropy)}
        for variant, values in entropies.items()
        for seed, entropy in enumerate(values, first_seed)
    ]


def test_the_candidate_with_the_lowest_entropy_is_chosen_and_compared():
    tuned = {"coma 1": [0.5, 0.5], "coma 2": [0.3, 0.6], "mappo 1": [0.2, 0.2]}
    tuned["mappo 2"] = [0.1, 0.4]
    final = {"coma 2": [0.3, 0.4, 0.5], "mappo 1": [0.1, 0.2, 0.45], "mappo 2": [0.0, 0.0, 0.0]}
    found = {
        "settings": {
            "worlds": ["4_uavs_split"],
            "seeds": [3, 4, 5],
            "development_seeds": [101, 102],
            "variants": {name: ["experiment.algorithm=x", "learning.gamma=1"] for name in tuned},
            "configuration": {"learning": {"training_steps": 9}},
        },
        "chosen": {"coma": "coma 2", "mappo": "mappo 1"},
        "runs": runs_of("development", 101, tuned) + runs_of("4_uavs_split", 3, final),
    }
    assert [algorithms.choose(found, name) for name in ("coma", "mappo")] == ["coma 2", "mappo 1"]
    shown = algorithms.table(found)
    lines = {tuple(line.split()[:2]): line.split() for line in shown.splitlines()}
    assert lines["4_uavs_split", "coma"][2] == "0.400"
    assert lines["4_uavs_split", "mappo"][2] == "0.250"
    assert "0.78" in lines["4_uavs_split", "mappo"]  # 7 of 9 pairs
    assert "0.450" in shown  # of the chosen candidate, mean of 0.3 and 0.6
    short = {**found, "runs": found["runs"][:-4]}  # mappo has two seeds of three
    assert algorithms.final_runs(short) == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_algorithms_have_as_many_valid_candidates_with_the_same_transitions(algorithm):
    base = load_config("params_fast.yaml")
    found = algorithms.candidates(base, algorithm)
    made = [config_from_dict(config_to_dict(base), overrides=o) for o in found.values()]
    assert len({config.model_dump_json() for config in made}) == len(found) == 8
    assert {config.experiment.algorithm for config in made} == {algorithm}
    assert {config.networks for config in made} == {base.networks}
    steps = {config.schedule.transitions_per_step for config in made}
    assert steps == {base.schedule.transitions_per_step}
