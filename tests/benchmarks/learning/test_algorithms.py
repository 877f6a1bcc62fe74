from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import algorithms
from marl_framework.config.loading import config_from_dict, config_to_dict, load_config
from marl_framework.config.parts import ALGORITHMS

ARGUMENTS = ["--config", "params_test.yaml", "--device", "cpu", "--steps", "2"]
SETTINGS = ("evaluation.missions=2", "learning.clip_ratio=0.2", "learning.batch_number=1")
TINY = [*ARGUMENTS, *(part for text in SETTINGS for part in ("--set", text))]
FEW = ["--algorithms", "coma,mappo", "--worlds", "4_uavs_split", "--development-seeds", "101"]


def run(out: Path, *arguments: str) -> int:
    return algorithms.main([*TINY, *FEW, "--out", str(out), *arguments])


def kinds(found: dict[str, Any]) -> list[tuple[str, int]]:
    return [(one["world"], one["seed"]) for one in found["runs"]]


@pytest.fixture(autouse=True)
def _two_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "RATES", ("1e-3",))
    monkeypatch.setattr(algorithms, "DISCOUNTS", (("0.8", "0.5"),))


def test_runs_are_kept_and_more_seeds_add_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "found.json"
    assert run(out, "--seeds", "3") == 0
    first = json.loads(out.read_text())
    assert kinds(first) == [("development", 101)] * 4 + [("4_uavs_split", 3)] * 2
    assert {len(one["rows"]) for one in first["runs"]} == {1}
    assert [one["rows"][-1]["training_step"] for one in first["runs"]] == [1] * 4 + [2] * 2
    # The same transitions for each.
    assert len({one["rows"][-1]["transitions"] for one in first["runs"][4:]}) == 1
    assert "[" not in capsys.readouterr().out.partition("interquartile")[2].partition("bit]")[2]
    made, learn = [], algorithms.learn
    monkeypatch.setattr(algorithms, "learn", lambda *a: made.append(a) or learn(*a))
    assert run(out, "--seeds", "3,4") == 0
    assert len(made) == 2  # the others were there
    second = json.loads(out.read_text())
    assert second["runs"][:6] == first["runs"]
    assert out.with_suffix(".png").is_file()
    shown = capsys.readouterr().out
    assert "better than coma" in shown
    assert "Tuned on development seeds 101" in shown


def test_every_world_has_the_same_transitions(tmp_path: Path) -> None:
    worlds = ["--worlds", "4_uavs_split,8_uavs_mixed", "--set", "environment.num_envs=4"]
    out = tmp_path / "found.json"
    assert run(out, "--seeds", "3", "--algorithms", "coma", *worlds) == 0
    runs = json.loads(out.read_text())["runs"][2:]
    assert [one["world"] for one in runs] == ["4_uavs_split", "8_uavs_mixed"]
    assert len({one["rows"][-1]["transitions"] for one in runs}) == 1


def found_with(scores: dict[str, list[float]], finals: dict[str, list[float]]) -> dict[str, Any]:
    """What a benchmark might have found: ROI entropies of candidates, and of final runs."""

    def one(variant: str, world: str, seed: int, entropy: float) -> dict[str, Any]:
        row = {"roi_entropy": entropy, "f1": 1 - entropy, "seconds": 60.0, "transitions": 3840}
        return {"variant": variant, "world": world, "seed": seed, "rows": [row]}

    development = [
        one(variant, "development", 101 + i, value)
        for variant, values in scores.items()
        for i, value in enumerate(values)
    ]
    runs = [
        one(variant, "4_uavs_split", 3 + i, value)
        for variant, values in finals.items()
        for i, value in enumerate(values)
    ]
    return {
        "settings": {
            "worlds": ["4_uavs_split"],
            "seeds": [3, 4, 5],
            "development_seeds": [101, 102],
            "variants": {name: ["experiment.algorithm=x", "learning.gamma=1"] for name in scores},
            "configuration": {"learning": {"training_steps": 9}},
        },
        "chosen": {"coma": "coma 2", "mappo": "mappo 1"},
        "runs": development + runs,
    }


def test_the_candidate_with_the_lowest_entropy_is_chosen_and_compared() -> None:
    found = found_with(
        {"coma 1": [0.5, 0.5], "coma 2": [0.3, 0.6], "mappo 1": [0.2, 0.2], "mappo 2": [0.1, 0.4]},
        {"coma 2": [0.3, 0.4, 0.5], "mappo 1": [0.1, 0.2, 0.45], "mappo 2": [0.0, 0.0, 0.0]},
    )
    assert [algorithms.choose(found, name) for name in ("coma", "mappo")] == ["coma 2", "mappo 1"]
    shown = algorithms.table(found)
    lines = [line.split() for line in shown.splitlines()]
    (coma,) = (line for line in lines if line[:2] == ["4_uavs_split", "coma"])
    (mappo,) = (line for line in lines if line[:2] == ["4_uavs_split", "mappo"])
    assert coma[2] == "0.400"
    assert mappo[2] == "0.250"
    assert "0.78" in mappo  # 7 of 9 pairs
    assert "0.450" in shown  # of the chosen candidate, mean of 0.3 and 0.6
    short = {**found, "runs": found["runs"][:-4]}  # mappo has two seeds of three
    assert algorithms.final_runs(short) == {}


def test_all_algorithms_have_as_many_valid_candidates_with_the_same_transitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    base = load_config("params_fast.yaml")
    for algorithm in ALGORITHMS:
        found = algorithms.candidates(base, algorithm)
        assert len(found) == 8
        made = [config_from_dict(config_to_dict(base), overrides=o) for o in found.values()]
        assert len({config.model_dump_json() for config in made}) == 8
        assert {config.experiment.algorithm for config in made} == {algorithm}
        assert {config.schedule.transitions_per_step for config in made} == {
            base.schedule.transitions_per_step
        }
        assert {config.networks for config in made} == {base.networks}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--algorithms", "qmix"], "--algorithms qmix"),
        (["--worlds", "moon"], "--worlds moon"),
        (["--seeds", "3,101"], "--development-seeds 101: 101 is one of --seeds too"),
        (["--steps", "0"], "--steps 0"),
        (["--set", "evaluation.interval=0"], "evaluation.interval 0"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert run(tmp_path / "found.json", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert named in error
    assert error.count("\n") == 1
    assert not (tmp_path / "found.json").exists()
