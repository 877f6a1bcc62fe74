"""The command line of the evaluation, in process."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from marl_framework.config.loading import config_to_dict, dump_config, load_config
from marl_framework.config.model import Config
from marl_framework.evaluate import latest_teams, main
from marl_framework.evaluation import comparison
from marl_framework.main import main as train
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.runs.files import write_json
from marl_framework.runs.lock import RunLock
from tests.small import small_config
from tests.teams import save_team

ON_CPU = {"compute": {"device": "cpu"}}
TRAINED = small_config(agents=2, **ON_CPU)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    checkpoints = tmp_path / "run" / "checkpoints"
    save_team(checkpoints / "last.pt", TRAINED, 1, training_step=20)
    save_team(checkpoints / "best.pt", TRAINED, 0, training_step=10)
    return tmp_path / "run"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    dump_config(TRAINED, tmp_path / "world.yaml")
    return tmp_path / "world.yaml"


def evaluate(out: Path, policies: str, *arguments: object, figures: bool = False) -> dict[str, Any]:
    given = ["--policies", policies, "--missions", "2", *map(str, arguments), "--out", str(out)]
    assert main([*given, *([] if figures else ["--no-figures"])]) == 0
    found: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.usefixtures("drawn")
def test_an_evaluation_leaves_all_it_promises(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    out.mkdir(parents=True)
    (out / "notes.txt").write_text("of somebody else")
    found = evaluate(out, "learned,random", "--checkpoint", run, figures=True)
    names = ["results.json", "table.txt", "curves.png", "mission_learned.gif"]
    names += [
        f"{kind}_{name}.png" for kind in ("mission", "film") for name in ("learned", "random")
    ]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "notes.txt"])
    printed = capsys.readouterr().out
    assert (out / "table.txt").read_text(encoding="utf-8") in printed
    assert printed.splitlines()[-len(names) :] == [str(out / name) for name in sorted(names)]
    settings = found["settings"]
    assert settings["checkpoint"] == str(run / "checkpoints" / "best.pt")
    assert (settings["training_step"], settings["seed"]) == (10, 10001)
    assert settings["configuration"]["experiment"] == config_to_dict(TRAINED)["experiment"]
    for name in ("learned", "random"):
        rows = found["policies"][name]["roi_entropy"]
        assert [len(row) for row in rows] == [TRAINED.missions.episode_length + 2] * 2
    # Both fly the same missions: the first reading, at the start, is the same.
    first = [[row[1] for row in p["mll"]] for p in found["policies"].values()]
    assert first[0] == first[1]


def test_results_depend_on_seed_and_sampling_alone(run: Path, tmp_path: Path) -> None:
    variants = {"a": (), "b": (), "seed": ("--seed", 6), "sample": ("--sample",)}
    found = {
        name: evaluate(tmp_path / name, "random,learned", "--checkpoint", run, *more)
        for name, more in variants.items()
    }
    flown = {name: each["policies"] for name, each in found.items()}
    assert flown["a"] == flown["b"]
    assert flown["a"] != flown["seed"]
    assert flown["a"]["random"] == flown["sample"]["random"]
    assert flown["a"]["learned"] != flown["sample"]["learned"]
    assert [each["settings"]["greedy"] for each in found.values()] == [True, True, True, False]


def test_a_run_without_best_uses_last(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints" / "best.pt").unlink()
    found = evaluate(tmp_path / "out", "learned", "--checkpoint", run)
    assert found["settings"]["training_step"] == 20


def test_former_keys_of_the_users_are_told_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--set", "networks.gamma=0.9", "--communication", "0,25"]
    evaluate(tmp_path / "out", "learned", "--checkpoint", run, *changes)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: override networks.gamma=0.9: ")
    assert "learning.gamma" in line


def test_the_world_may_come_from_another_file(run: Path, tmp_path: Path) -> None:
    other = small_config(agents=3, budget=6, networks={"actor": {"conv_channels": 99}}, **ON_CPU)
    dump_config(other, tmp_path / "other.yaml")
    arguments = ["--checkpoint", run, "--config", tmp_path / "other.yaml"]
    found = evaluate(tmp_path / "out", "learned", *arguments, "--set", "mapping.prior=0.4")
    used = found["settings"]["configuration"]
    assert used["experiment"]["missions"]["n_agents"] == 3
    assert used["experiment"]["constraints"]["budget"] == 6
    assert used["mapping"]["prior"] == 0.4
    assert used["networks"]["actor"]["conv_channels"] == 8


def test_a_team_of_several_areas_flies_in_each(tmp_path: Path) -> None:
    area = ({"x_dim": 30.0, "y_dim": 30.0}, {"x_dim": 40.0, "y_dim": 20.0, "budget": 6})
    seen = {"window": 5, "other_actions": False}
    team = save_team(
        tmp_path / "team.pt", small_config(observation=seen, environment={"area": area}, **ON_CPU)
    )
    found = evaluate(tmp_path / "all", "learned,random", "--checkpoint", team)["combinations"]
    worlds = {each["name"]: each["settings"]["configuration"]["environment"] for each in found}
    assert [(each["x_dim"], each["y_dim"]) for each in worlds.values()] == [(30, 30), (40, 20)]
    assert list(worlds) == ["area_1_30x30", "area_2_40x20"]
    moves = [len(each["policies"]["learned"]["f1"][0]) for each in found]
    assert moves == [4 + 3, 6 + 3]
    sides = ["--set", "environment.x_dim=60", "--set", "environment.y_dim=25"]
    one = evaluate(tmp_path / "one", "learned", "--checkpoint", team, *sides)
    assert one["settings"]["configuration"]["environment"]["x_dim"] == 60


def test_all_classical_planners_and_the_oracle_fly_without_a_team(
    world: Path, tmp_path: Path
) -> None:
    names = ["coverage", "information_gain", "random", "oracle"]
    out = tmp_path / "out"
    found = evaluate(out, ",".join(names), "--config", world, "--device", "cpu", "--html")
    assert list(found["policies"]) == names
    assert len(found["differences"]) == 3
    assert found["settings"]["checkpoint"] is None
    assert {path.name for path in out.iterdir()} == {"mission.html", "results.json", "table.txt"}


def test_several_teams_are_compared_in_one_table_and_figure(tmp_path: Path) -> None:
    first = save_team(tmp_path / "a.pt", TRAINED)
    sees_more = small_config(agents=2, observation={"uncertainty": True}, **ON_CPU)
    second = save_team(tmp_path / "b.pt", sees_more, 1)
    out = tmp_path / "out"
    found = evaluate(out, f"learned={first},random,learned={second}", figures=True)
    assert list(found["policies"]) == ["a.pt", "random", "b.pt"]
    assert found["settings"]["teams"] == {"a.pt": str(first), "b.pt": str(second)}
    assert (out / "curves.png").stat().st_size > 0
    alone = evaluate(tmp_path / "alone", "learned", "--checkpoint", second)
    assert alone["policies"]["learned"] == found["policies"]["b.pt"]


def test_teams_of_other_missions_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All fly the mission of the first one, so the order counts."""
    first = save_team(tmp_path / "a.pt", TRAINED)
    alike = save_team(tmp_path / "b.pt", TRAINED, 1)
    other = small_config(agents=2, budget=7, uav={"communication_range": 7.0}, **ON_CPU)
    third = save_team(tmp_path / "c.pt", other, 1)
    keys = ("experiment.constraints.budget", "experiment.uav.communication_range")

    def named(policies: str, *arguments: object) -> list[str]:
        capsys.readouterr()
        evaluate(tmp_path / "out", policies, *arguments)
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if all(key in line for key in keys)]

    teams = f"learned={first},learned={alike},learned={third}"
    (line,) = named(teams)
    assert line.index("a.pt") < line.index("c.pt")
    assert "b.pt" not in line
    # What the command line sets is the same for all.
    same = ["--communication", "5", "--set", "experiment.constraints.budget=2"]
    assert named(teams, *same) == []
    # A team of --checkpoint flies its mission, and so do all others.
    (line,) = named(f"learned={first}", "--checkpoint", third)
    assert line.index(str(third)) < line.index("a.pt")


def test_a_trained_team_flies_with_any_number_and_any_radio(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--checkpoint", run, "--agents", "2,5", "--communication", "0,inf"]
    found = evaluate(tmp_path / "out", "learned,random", *arguments, figures=True)["combinations"]
    labels = [f"agents_{n}_range_{r}" for n in (2, 5) for r in ("0", "inf")]
    assert [each["name"] for each in found] == labels
    for each, agents in zip(found, (2, 2, 5, 5), strict=True):
        used = each["settings"]["configuration"]["experiment"]
        assert used["missions"]["n_agents"] == each["settings"]["agents"] == agents
        assert used["uav"]["communication_range"] in (0.0, "inf")
        assert len(each["policies"]["learned"]["f1"]) == 2
        assert (tmp_path / "out" / each["name"] / "curves.png").is_file()
    # More UAVs map more.
    entropy = [each["summary"]["random"]["roi_entropy"]["mean"] for each in found]
    assert max(entropy[2:]) < min(entropy[:2])
    overview = capsys.readouterr().out.partition("ROI entropy [bit] / F1, means")[2]
    assert all(label in overview for label in labels)


def test_results_are_there_before_anything_is_drawn(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(comparison, "draw", Mock(side_effect=KeyboardInterrupt))
    arguments = ["--policies", "random", "--checkpoint", str(run), "--missions", "1"]
    assert main([*arguments, "--agents", "1,2", "--out", str(tmp_path)]) == 130
    (only,) = json.loads((tmp_path / "results.json").read_text())["combinations"]
    assert only["name"] == "agents_1"
    assert "agents_1" in (tmp_path / "table.txt").read_text(encoding="utf-8")
    assert capsys.readouterr().err.splitlines() == ["interrupted"]


def test_the_terrain_may_be_another(run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "my map: #1.npy", np.random.default_rng(0).random((90, 120)))
    raster = f"raster:{tmp_path / 'my map: #1.npy'}"
    resolution = ("--set", "sensor.simulation.raster.resolution=1.5")
    for terrain, kind, more in (
        ("mixed", "mixed", ()),
        ("band", "band", ()),
        (raster, "raster", resolution),
    ):
        given = ["--checkpoint", run, "--terrain", terrain, *more]
        assert evaluate(tmp_path / kind, "random", *given)["settings"]["terrain"] == [kind]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--policies", "learnt"], "--policies: 'learnt'"),
        (["--policies", ""], "--policies"),
        (["--policies", "random,random"], "--policies"),
        (["--policies", "learned=nowhere.pt"], "nowhere.pt"),
        (["--policies", "learned=a,learned=a"], "--policies"),
        (["--policies", "random,learned=random"], "--policies"),
        (["--terrain", "hills"], "--terrain: 'hills'"),
        (["--terrain", "x" * 300], "--terrain"),
        (["--terrain", "raster:"], "--terrain: 'raster:'"),
        (["--terrain", "{tmp}/world.yaml"], "; use raster:"),
        (["--terrain", "raster:nowhere.tif"], "nowhere.tif"),
        (["--agents", "two"], "--agents: two"),
        (["--agents", "2,2"], "--agents: 2,2"),
        (["--agents", "129"], "experiment.missions.n_agents"),
        (["--communication", "-1"], "--communication: -1"),
        (["--communication", "nan"], "--communication: nan"),
        (
            ["--policies", "coverage", "--set", "experiment.baselines.coverage.altitude=6"],
            "experiment.baselines.coverage.altitude",
        ),
        (["--missions", "0"], "--missions: 0"),
        (["--missions", "1,2"], "--missions: 1,2"),
        (["--seed", "1048576"], "--seed: 1048576"),
        (["--checkpoint", "nowhere.pt"], "nowhere.pt"),
        (["--checkpoint", "x" * 300], "checkpoint x"),
        (["--checkpoint", "a.pt,b.pt"], "--policies learned=a.pt,learned=b.pt"),
        (["--checkpoint", "{tmp}"], "checkpoints/best.pt"),
        (["--checkpoint", "{tmp}/world.yaml"], "world.yaml"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--set", "networks.actor.conv_channels=16"], "8x7x5x5 there, 16x7x5x5 here"),
        (["--set", "experiment.constraints.num_actions=9"], "num_actions"),
        (["--set", "environment.x_dim=40"], "environment.x_dim"),
        (["--set", "observation.budget=false"], "observation"),
        (["--set", "environment.sed=4"], "environment.sed"),
        (["--device", "tpu"], "tpu"),
        (["--surprise"], "--surprise"),
        (["--only", "split"], "--only"),
        (["--maps", "split"], "--maps"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str], named: str, run: Path, world: Path, refused: Callable[..., str]
) -> None:
    out = run.parent / "out"
    given = ["--policies", "learned", "--checkpoint", str(run), "--missions", "1"]
    given += ["--out", str(out), *(text.format(tmp=run.parent) for text in arguments)]
    assert named in refused(main, given)
    assert not out.exists()


def test_checkpoints_that_lack_something_are_refused(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    broken = config_to_dict(TRAINED)
    broken["mapping"]["prior"] = 7
    cases = {"config": {"config": None}, "actor": {"actor": None}}
    for named, changes in (*cases.items(), ("mapping.prior", {"config": broken})):
        path = save_team(tmp_path / "team.pt", TRAINED, **changes)
        given = ["--policies", "learned", "--out", str(tmp_path / "out"), "--checkpoint", str(path)]
        assert named in refused(main, given)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--policies", "random"], "--config"),
        (["--policies", "learned", "--config", "{world}"], "--checkpoint"),
        (["--config", "{world}"], "--policies"),
        (["--policies", "random", "--config", "{world}", "--out", "{world}"], "--out"),
        (["--policies", "random", "--config", "{world}", "--out", "{world}/below"], "--out"),
        (["--policies", "random", "--config", "{world}", "--out", ""], "--out"),
        (["--policies", "random", "--suite", "standard", "--out", "x" * 300], "--out x"),
        (["--watch", "nowhere"], "--watch nowhere"),
        (["--watch", "x" * 300], "--watch x"),
        (["--watch", "{folder}", "--checkpoint", "x.pt"], "--checkpoint"),
        (["--watch", "{folder}"], "--watch"),
        (["--watch", "{folder}", "--suite", "standard"], "--watch"),
    ],
)
def test_something_to_fly_and_a_folder_are_needed(
    arguments: list[str], named: str, world: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    given = [text.format(world=world, folder=tmp_path) for text in arguments]
    assert named in refused(main, ["--device", "cpu", "--out", str(tmp_path / "out"), *given])
    assert list(tmp_path.iterdir()) == [world]
    assert "--out" in refused(main, ["--policies", "random"])


@pytest.mark.parametrize("missions", [1, 50, 77, 100, 1000])
def test_batches_are_equal_and_bounded(missions: int) -> None:
    batch = comparison.batch_size(Config(), missions)
    batches = -(-missions // batch)
    assert 1 <= batch <= 100
    assert batches * batch - missions < batches


# Tasks ------------------------------------------------------------------------------------

TASKS = """\
pair: {}
crowd:
  experiment: {missions: {n_agents: 5}}
  learning: {training_steps: 7}
deaf:
  experiment: {uav: {communication_range: 0}}
  sensor: {simulation: {kinds: [band]}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.yaml").write_text(TASKS)
    for seed, name in enumerate(("team", "expert-pair", "expert-crowd", "expert-deaf")):
        save_team(tmp_path / name / "checkpoints" / "best.pt", TRAINED, seed)
    return tmp_path


def test_every_task_is_flown_by_the_team_of_all_and_by_its_own(folder: Path) -> None:
    policies = f"learned={folder}/expert-{{task}},all={folder}/team,information_gain"
    out, tasks = folder / "out", ("--tasks", folder / "tasks.yaml")
    found = evaluate(out, policies, *tasks, figures=True)["combinations"]
    assert [each["name"] for each in found] == ["pair", "crowd", "deaf"]
    for each in found:
        assert list(each["policies"]) == ["expert", "all", "information_gain"]
        assert Path(each["settings"]["teams"]["expert"]).parts[-3] == f"expert-{each['name']}"
        assert Path(each["settings"]["teams"]["all"]).parts[-3] == "team"
    worlds = [each["settings"]["configuration"] for each in found]
    assert [world["experiment"]["missions"]["n_agents"] for world in worlds] == [2, 5, 2]
    assert [world["experiment"]["uav"]["communication_range"] for world in worlds] == [25, 25, 0]
    assert worlds[2]["sensor"]["simulation"]["kinds"] == ["band"]
    steps = {world["learning"]["training_steps"] for world in worlds}
    assert steps == {TRAINED.learning.training_steps}  # only the mission of a task counts
    assert (out / "worlds.png").stat().st_size > 0
    # A task is the world that its overrides make.
    alone = evaluate(folder / "alone", f"all={folder}/team,information_gain", "--agents", 5)
    assert alone["policies"]["all"] == found[1]["policies"]["all"]


@pytest.mark.parametrize(
    ("policies", "more", "named"),
    [
        ("learned=nowhere-{task}", [], "nowhere-pair"),
        ("random=team", [], "--policies"),
        ("a/b=team", [], "a/b"),
        ("random", ["--agents", "2"], "--agents"),
        ("random", ["--terrain", "band"], "--terrain"),
        ("random", ["--tasks", "missing.yaml"], "missing.yaml"),
        ("all={0}/team", ["--tasks", "{0}/odd.yaml"], "odd: experiment.missions.n_agents"),
        ("all={0}/team", ["--tasks", "{0}/name.yaml"], "a/b"),
        ("all={0}/team", ["--tasks", "{0}/same.yaml"], "two tasks have the name 1"),
        ("all={0}/team", ["--tasks", "{0}/areas.yaml"], "two worlds are named a_area_1_50x50"),
    ],
)
def test_bad_tasks_are_one_line(
    policies: str, more: list[str], named: str, folder: Path, refused: Callable[..., str]
) -> None:
    (folder / "odd.yaml").write_text("odd: {experiment: {missions: {n_agents: many}}}")
    (folder / "name.yaml").write_text("a/b: {}")
    (folder / "same.yaml").write_text("1: {}\n'1': {experiment: {missions: {n_agents: 3}}}")
    areas = "[{x_dim: 50, y_dim: 50, budget: 2}, {x_dim: 50, y_dim: 50, budget: 3}]"
    text = f"a_area_1_50x50: {{}}\na: {{environment: {{area: {areas}}}}}"
    (folder / "areas.yaml").write_text(text)
    given = ["--tasks", str(folder / "tasks.yaml"), *(text.format(folder) for text in more)]
    given += ["--policies", policies.format(folder, task="{task}"), "--out", str(folder / "out")]
    assert named in refused(main, given)
    assert not (folder / "out").exists()


# Watching a training ----------------------------------------------------------------------


def checkpoint(run: Path, time: int) -> None:
    path = run / "checkpoints" / "last.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(time))
    os.utime(path, (time, time))


def watch(run: Path) -> dict[str, Any]:
    assert main(["--watch", str(run), "--missions", "2", "--no-figures"]) == 0
    found: dict[str, Any] = json.loads((run / "watch" / "results.json").read_text())
    return found


def test_each_newer_team_is_handed_over_once_to_the_end(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)

    def no_news() -> None: ...

    def gone() -> None:
        (tmp_path / "checkpoints" / "last.pt").unlink()

    def end() -> None:
        checkpoint(tmp_path, 3)
        write_json(tmp_path / "status.json", {"state": "finished"})
        lock.release()

    first, second = (functools.partial(checkpoint, tmp_path, time) for time in (1, 2))
    steps = [no_news, first, no_news, gone, second, end]
    found = [path.read_text() for path in latest_teams(tmp_path, lambda _: steps.pop(0)())]
    assert found == ["1", "2", "3"]
    assert steps == []
    assert len(list(latest_teams(tmp_path))) == 1  # a run that has ended is shown once


def test_a_run_that_is_watched_stays_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--config", "params_test.yaml", "--device", "cpu", "--run-name", "t"]
    assert train([*given, "--set", "learning.training_steps=2"]) == 0
    assert list(watch(Path("runs/t"))["policies"]) == ["learned"]
    printed = capsys.readouterr().out
    assert "finished" in printed.splitlines()[-1]
    assert "Ctrl-C" not in printed
    page = Path("runs/t/watch/mission.html").read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="20">' in page
    assert train([*given, "--resume", "--allow-changed", "learning.training_steps"]) == 0
    assert watch(Path("runs/t"))["settings"]["training_step"] == 4


def test_missions_are_described_by_the_values_that_they_draw_from() -> None:
    sides = ["environment.x_dim=100", "experiment.uav.communication_range=[0, .inf]"]
    env = MissionEnvironment(load_config("params_fast.yaml", sides), 1, "cpu")
    described = comparison.describe_missions(env)
    assert described.endswith("4 UAVs, 15 moves, radio 0/inf m, 100 m x 50 m of 207 x 103 cells")
