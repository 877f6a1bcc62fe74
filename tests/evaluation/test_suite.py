"""The suites: their worlds, and flights in parts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marl_framework import evaluate as command
from marl_framework.config.loading import dump_config, load_config
from marl_framework.config.model import Config
from marl_framework.evaluation import suite, worlds
from marl_framework.evaluation.statistics import interval, worst_tenth
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.team import find_checkpoint
from marl_framework.runs.files import strict
from tests.teams import save_predictor, save_team

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FEW = ["--suite", "standard", "--missions", "3", "--policies", "learned,coverage,random"]
FEW += ["--seed", "7", "--device", "cpu"]
SEARCH = "experiment.baselines.search"
BELIEF = ("roi_entropy", "f1", "ece", "brier")
MEASURED = {*BELIEF, *(f"completed_{metric}" for metric in BELIEF)}
SEARCHED = ["--policies", "search"]


def config(seed: int, *overrides: str) -> Config:
    return load_config("params_test.yaml", [f"environment.seed={seed}", *overrides])


def team(path: Path, seed: int, *overrides: str) -> str:
    return str(save_team(path, config(seed, *overrides), seed))


def predictor(path: Path, seed: int) -> str:
    return str(save_predictor(path, config(seed), seed))


@pytest.fixture
def teams(tmp_path: Path) -> list[str]:
    return [team(tmp_path / f"{seed}.pt", seed) for seed in (3, 4)]


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (suite, worlds):
        monkeypatch.setattr(module, "BASE", "params_test.yaml")


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    flown: list[str] = []
    fly = suite.evaluate

    def counted(env: Any, planner: Any, *rest: Any, **more: Any) -> Any:
        record = fly(env, planner, *rest, **more)
        flown.append(planner.name)
        return record

    monkeypatch.setattr(suite, "evaluate", counted)
    return flown


def run(out: Path, *arguments: str) -> dict[str, Any]:
    assert command.main([*FEW, *arguments, "--out", str(out)]) == 0
    found: dict[str, Any] = json.loads((out / "suite.json").read_text(encoding="utf-8"))
    return found


def single(out: Path, *arguments: str) -> dict[str, Any]:
    """Return the values after the last move of a comparison of the same missions, by policy."""
    given = ["--missions", "3", "--seed", "7", "--config", "params_test.yaml", "--device", "cpu"]
    given += ["--terrain", "split", "--no-figures", *arguments, "--out", str(out)]
    assert command.main(given) == 0
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))["policies"]
    return {
        policy: {metric: [rounds[-1] for rounds in rows[metric]] for metric in MEASURED}
        for policy, rows in found.items()
    }


@pytest.mark.usefixtures("_short")
def test_a_suite_holds_what_single_evaluations_find(
    teams: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "map.npy", np.random.default_rng(0).random((150, 150)))
    np.savez(tmp_path / "map.npz", values=np.load(tmp_path / "map.npy"), resolution_m=1.2)
    maps = f"throne_0755={tmp_path / 'map.npz'}"
    chosen = "2_uavs_radio_inf,elevation,throne_0755"
    arguments = ["--checkpoint", ",".join(teams), "--only", chosen, "--maps", maps]
    found = run(tmp_path / "out", *arguments)
    assert list(found["worlds"]) == chosen.split(",")
    assert [each["seed"] for each in found["teams"]] == [3, 4]
    assert (found["missions"], found["standard_missions"]) == (3, 50)
    assert (found["seed"], found["standard_seed"]) == (7, 30001)
    title = next(line for line in capsys.readouterr().out.splitlines() if "Suite standard" in line)
    assert re.findall(r"\d+", title) == ["1", "3", "50", "2", "7", "30001"]
    missing = [world.name for world in worlds.WORLDS if world.name not in chosen]
    assert found["left_out"] == [*missing, "throne_1121", "throne_held_out"]

    world = found["worlds"]["2_uavs_radio_inf"]
    same = ["--policies", "learned,coverage,random", "--agents", "2", "--communication", "inf"]
    for number, each in enumerate(teams):
        alone = single(tmp_path / "single", *same, "--checkpoint", each)
        for policy, row in (("learned", number), ("coverage", 0), ("random", 0)):
            for metric, last in alone[policy].items():
                assert world["finals"][policy][metric][row] == pytest.approx(last, abs=1e-6)

    learned = torch.tensor(world["finals"]["learned"]["f1"], dtype=torch.float64)
    row = world["summary"]["learned"]["f1"]
    assert row["seeds"] == pytest.approx(learned.mean(1).tolist())
    ends = interval(learned)
    assert ends is not None
    assert row["interval"] == pytest.approx(list(ends))
    assert {metric: len(rows) for metric, rows in world["finals"]["learned"].items()} == (
        dict.fromkeys(MEASURED, 2)
    )
    assert world["summary"]["learned"].keys() == MEASURED
    worst = json.loads(json.dumps(worst_tenth(learned, 1)))
    assert row["worst_tenth"] == worst | {"difference": row["worst_tenth"]["difference"]}
    assert found["worlds"]["throne_0755"]["blocks"] is not None
    assert len(set(found["worlds"]["elevation"]["blocks"])) > 1
    assert world["blocks"] is None


@pytest.mark.usefixtures("_short")
def test_only_missing_flights_are_flown_also_after_an_interruption(
    teams: list[str],
    tmp_path: Path,
    flights: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--checkpoint", teams[0], "--only", "split,mixed"]
    whole = run(tmp_path / "whole", *arguments)
    assert flights == ["learned", "coverage", "random"] * 2
    fly, left = suite.evaluate, iter([True] * 4)

    def stopped(*flight: Any, **more: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return fly(*flight, **more)

    parts = tmp_path / "parts"
    with monkeypatch.context() as patch:
        patch.setattr(suite, "evaluate", stopped)
        assert command.main([*FEW, *arguments, "--out", str(parts)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert not (parts / "suite.json").exists()
    flights.clear()
    assert run(parts, *arguments)["worlds"] == whole["worlds"]
    assert flights == ["coverage", "random"]
    run(parts, *arguments, "--checkpoint", ",".join(teams))
    assert flights[2:] == ["learned"] * 2


@pytest.mark.usefixtures("_short")
def test_flights_without_all_metrics_are_flown_again(tmp_path: Path, flights: list[str]) -> None:
    given = ["--policies", "coverage,random", "--only", "split"]
    whole = run(tmp_path, *given)
    file = tmp_path / "worlds" / "split.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    for metric in ("ece", "brier"):
        del content["flights"]["random"][metric]
    file.write_text(json.dumps(content), encoding="utf-8")
    flights.clear()
    assert run(tmp_path, *given)["worlds"] == whole["worlds"]
    assert flights == ["random"]


@pytest.mark.usefixtures("_short")
def test_two_suites_at_once_keep_the_flights_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While random flies, another command flies coverage in the same world."""
    split = ["--only", "split", "--policies"]
    fly = suite.evaluate

    def beside(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(suite, "evaluate", fly)
        run(tmp_path, *split, "coverage")
        return fly(*arguments, **more)

    monkeypatch.setattr(suite, "evaluate", beside)
    run(tmp_path, *split, "random")
    flown = json.loads((tmp_path / "worlds" / "split.json").read_text(encoding="utf-8"))
    assert list(flown["flights"]) == ["coverage", "random"]


@pytest.mark.usefixtures("_short")
def test_flights_of_other_missions_are_not_mixed(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    run(tmp_path, "--policies", "random", "--only", "split")
    given = [*FEW, "--policies", "random", "--only", "split", "--out", str(tmp_path)]
    file = tmp_path / "worlds" / "split.json"
    named = f"--out {tmp_path}: worlds/split.json"
    assert named in refused(command.main, [*given, "--missions", "4"])
    assert named in refused(command.main, [*given, "--seed", "8"])
    for mine, others in (('"seed": 7', '"seed": 8'), ('"device": "cpu"', '"device": "cuda"')):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(mine, others))
        assert named in refused(command.main, given)
        file.write_text(text)


def test_maps_of_another_completion_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    file = Path(predictor(tmp_path / "own.pt", 3))

    def use(*settings: str) -> None:
        found = config(1, f"evaluation.predictor={file}", *settings)
        dump_config(found, tmp_path / "base.yaml")

    for module in (suite, worlds):
        monkeypatch.setattr(module, "BASE", str(tmp_path / "base.yaml"))
    given = ["--policies", "random", "--only", "split"]
    use()
    found = run(tmp_path, *given)["worlds"]["split"]
    digest = suite.digest(find_checkpoint(str(file)))
    assert found["completion"] == {"predictor": digest, "caution": None}
    named = f"--out {tmp_path}: worlds/split.json"
    again = [*FEW, *given, "--out", str(tmp_path)]
    use("evaluation.caution=0.5")
    assert named in refused(command.main, again)
    use()
    predictor(file, 4)
    assert named in refused(command.main, again)
    predictor(file, 3)
    run(tmp_path, *given)
    use("evaluation.predictor=null")
    assert "evaluation.predictor" in refused(command.main, again)


@pytest.mark.usefixtures("_short")
def test_search_flies_with_each_predictor_as_a_team_with_each_seed(
    tmp_path: Path, flights: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [predictor(tmp_path / f"{seed}.pt", seed) for seed in (3, 4)]
    arguments = ["--policies", "search,random", "--only", "split"]
    arguments += ["--set", f"{SEARCH}.beams=2"]
    given = f"{SEARCH}.predictor={','.join(runs)}"
    found = run(tmp_path, *arguments, "--set", given)
    assert flights == ["search", "search", "random"]
    assert [each["seed"] for each in found["predictors"]] == [3, 4]
    assert found["teams"] == []
    world = found["worlds"]["split"]
    entropies = torch.tensor(world["finals"]["search"]["roi_entropy"])
    assert entropies.shape == (2, 3)
    same = ["--policies", "search", "--set", f"{SEARCH}.beams=2"]
    same += ["--set", f"{SEARCH}.predictor={runs[1]}"]
    alone = single(tmp_path / "single", *same)["search"]["roi_entropy"]
    assert entropies[1].tolist() == pytest.approx(alone, abs=1e-6)
    difference = world["summary"]["search"]["roi_entropy"]["difference"]
    assert difference["reference"] == "random"
    assert "2 predictors" in capsys.readouterr().out

    flights.clear()
    run(tmp_path, *arguments, "--set", given)
    assert flights == []
    arguments += ["--set", f"{SEARCH}.predictor={runs[1]}"]
    run(tmp_path, *arguments)
    assert flights == []
    run(tmp_path, *arguments, "--set", f"{SEARCH}.beams=3")
    assert flights == ["search"]


@pytest.mark.usefixtures("_short")
def test_without_a_classical_planner_nothing_is_won_or_lost(
    teams: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--policies", "learned", "--checkpoint", teams[0], "--only", "split"]
    found = run(tmp_path, *given, "--missions", "1")
    assert found["worlds"]["split"]["summary"]["learned"]["f1"]["difference"] is None
    assert "undecided" not in capsys.readouterr().out


def test_the_suite_of_teams_has_every_team_in_every_place(tmp_path: Path) -> None:
    file = tmp_path / "map.npz"
    file.write_bytes(b"map")
    found = worlds.chosen_worlds("teams", f"flight={file}", None)
    names = [world.name for world in found]
    assert len(set(names)) == len(names) == 3 * 4 * 3
    for world in found:
        place, uavs, _, _, radio = world.name.rsplit("_", 4)
        mission = world.definition()["mission"]
        assert mission["experiment"]["missions"]["n_agents"] == int(uavs)
        assert mission["experiment"]["uav"]["communication_range"] == float(radio)
        kinds = {"flight": "raster"}.get(place, place)
        assert mission["sensor"]["simulation"]["kinds"] == [kinds]
    # Where both suites have a world, its missions are the same.
    (ours,) = worlds.chosen_worlds("teams", None, "split_8_uavs_radio_inf")
    (star,) = worlds.chosen_worlds("standard", None, "8_uavs_radio_inf")
    assert ours.definition()["mission"] == star.definition()["mission"]
    missing = worlds.left_out("teams", dict.fromkeys(names))
    assert len(missing) == len(worlds.FLIGHTS) * 4 * 3
    assert missing[0] == "throne_0755_2_uavs_radio_0"


def test_the_worlds_are_those_of_the_published_results() -> None:
    published = json.loads((RESULTS / "suite.json").read_text())
    assert (published["version"], published["missions"]) == (worlds.VERSION, worlds.MISSIONS)
    for world in worlds.WORLDS:
        flown = published["worlds"][world.name]["definition"]
        assert flown == json.loads(json.dumps(strict(world.definition()))), world.name


def test_each_seed_may_have_predictors_and_teachers_of_its_own(tmp_path: Path) -> None:
    own = ["learning.teacher.run"]
    own += [f"{part}.predictor" for part in ("networks", "evaluation", SEARCH)]
    given = [
        team(tmp_path / f"{seed}.pt", seed, *(f"{key}=runs/{seed}" for key in own))
        for seed in (3, 4)
    ]
    bare = "learning.teacher.weight=0", "deployment.speed=4", "flying.min_battery=0.3"
    given.append(team(tmp_path / "5.pt", 5, *bare))  # a team of the library keeps no teacher
    suite.check_one_training([find_checkpoint(path) for path in given], "--checkpoint")


def test_another_predictor_at_the_same_place_is_another_flyer(tmp_path: Path) -> None:
    path = tmp_path / "own.pt"
    sees = ("observation.predicted=true", f"networks.predictor={path}")
    predictor(path, 3)
    teams = [find_checkpoint(team(tmp_path / "other.pt", 3, *sees))]

    def key(seed: int) -> str:
        predictor(path, seed)
        return suite.flyers(["learned"], teams)[0].key

    assert key(3) == key(3) != key(4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--only", "moon"], "--only moon"),
        (["--maps", "flight.npz"], "--maps flight.npz"),
        (["--maps", "split=flight.npz"], "--maps split=flight.npz"),
        (["--suite", "rough", "--maps", "split_wind_1=flight.npz"], "named split_wind_1;"),
        (["--maps", "a={bare}", "--only", "a"], "resolution_m"),
        (["--maps", "a=nowhere.npz"], "nowhere.npz"),
        (["--sample"], "--sample"),
        (["--set", "mapping.prior=0.4"], "--set mapping.prior=0.4"),
        (["--set", f"{SEARCH}.beams=2"], f"--set {SEARCH}.beams=2"),
        ([*SEARCHED, "--set", f"{SEARCH}.beams=0"], f"{SEARCH}.beams"),
        ([*SEARCHED, "--set", f"{SEARCH}.predictor=pretrained:x"], "pretrained:predictor"),
        ([*SEARCHED, "--set", f"{SEARCH}.predictor=nowhere"], "nowhere"),
        ([*SEARCHED, "--set", f"{SEARCH}.predictor={{0}}"], "{0}"),
        ([*SEARCHED, "--set", f"{SEARCH}.predictor={{0}},{{0}}"], "environment.seed 3"),
        (["--checkpoint", "{0},{0}"], "environment.seed 3"),
        (["--checkpoint", "{0},{other}"], "other.pt and {0}"),
        (["--checkpoint", "{0},{other}"], "(learning.gamma)"),
        (["--checkpoint", "pretrained:student,{0}"], "{0} and pretrained:student"),
        (["--checkpoint", "nowhere"], "nowhere"),
        (["--checkpoint", "{blind}"], "networks.predictor"),
        (["--policies", "learned={0}"], "--policies"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str], named: str, teams: list[str], tmp_path: Path, refused: Callable[..., str]
) -> None:
    other = team(tmp_path / "other.pt", 5, "learning.gamma=0.5")
    gone = "observation.predicted=true", "networks.predictor=gone.pt"
    blind = team(tmp_path / "blind.pt", 5, *gone)
    np.save(bare := tmp_path / "bare.npy", np.eye(200))
    given = [text.format(*teams, other=other, bare=bare, blind=blind) for text in arguments]
    out = tmp_path / "out"
    line = refused(command.main, [*FEW, "--checkpoint", teams[0], *given, "--out", str(out)])
    assert named.format(*teams) in line
    assert not out.exists()


def test_a_team_is_needed_for_the_default_policies(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    given = ["--suite", "standard", "--device", "cpu", "--out", str(tmp_path)]
    assert "--checkpoint" in refused(command.main, given)


def test_rough_worlds_differ_from_the_quiet_one_in_disturbances_alone() -> None:
    quiet, *rough = worlds.chosen_worlds("rough", None, None)
    definitions = [json.dumps(world.definition()["mission"]) for world in (quiet, *rough)]
    assert not quiet.overrides
    assert len(set(definitions)) == len(definitions) == 22
    missions = []
    for world in (quiet, *rough):
        coarse = [*world.overrides, "sensor.pixel.number_x=4", "sensor.pixel.number_y=4"]
        env = MissionEnvironment(load_config("params.yaml", coarse), 2, "cpu", seed=5)
        state = env.reset()
        missions.append((state.truth, state.positions))
    for truth, positions in missions:
        assert truth.equal(missions[0][0])
        assert positions.equal(missions[0][1])
