"""Teams compared task by task: each task's missions, and where asked a team for each task."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_framework.evaluate import main
from tests.evaluation.test_evaluate import TRAINED, results, write_checkpoint

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
    """A tasks file, a worker for each task and one team for all."""
    (tmp_path / "tasks.yaml").write_text(TASKS)
    for seed, name in enumerate(("team", "expert-pair", "expert-crowd", "expert-deaf")):
        write_checkpoint(tmp_path / name / "checkpoints" / "best.pt", seed)
    return tmp_path


def evaluate(folder: Path, policies: str, *more: str) -> int:
    given = ["--policies", policies, "--missions", "2", "--out", str(folder / "out")]
    return main([*given, "--tasks", str(folder / "tasks.yaml"), *more])


@pytest.mark.usefixtures("drawn")
def test_every_task_is_flown_by_the_team_of_all_and_by_its_own(folder: Path) -> None:
    policies = f"learned={folder}/expert-{{task}},all={folder}/team,information_gain"
    assert evaluate(folder, policies) == 0
    found = results(folder / "out")["combinations"]
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
    assert steps == {TRAINED.learning.training_steps}  # the mission is all that counts
    assert (folder / "out" / "worlds.png").stat().st_size > 0


def test_a_task_is_the_world_that_its_overrides_make(folder: Path) -> None:
    team = f"learned={folder}/team"
    assert evaluate(folder, team, "--no-figures") == 0
    crowd = results(folder / "out")["combinations"][1]
    given = ["--policies", team, "--missions", "2", "--no-figures", "--agents", "5"]
    assert main([*given, "--out", str(folder / "alone")]) == 0
    assert results(folder / "alone")["policies"] == crowd["policies"]


@pytest.mark.parametrize(
    ("policies", "more", "said"),
    [
        ("learned=nowhere-{task}", [], "nowhere-pair"),
        ("random=team", [], "none like a planner"),
        ("a/b=team", [], "a/b"),
        ("random", ["--agents", "2"], "--agents: --tasks says what is flown"),
        ("random", ["--terrain", "band"], "--terrain: --tasks says what is flown"),
        ("random", ["--tasks", "missing.yaml"], "missing.yaml"),
    ],
)
def test_bad_input_is_one_line(
    policies: str,
    more: list[str],
    said: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert evaluate(folder, policies, *more) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            "odd: {experiment: {missions: {n_agents: many}}}",
            ["odd", "experiment.missions.n_agents"],
        ),
        ("a/b: {}", ["a/b"]),
    ],
)
def test_a_bad_task_is_named(
    task: str, said: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tasks.yaml").write_text(f"{task}\n")
    assert evaluate(folder, f"learned={folder}/team") == 2
    error = capsys.readouterr().err
    assert all(word in error for word in said)
    assert not (folder / "out").exists()
