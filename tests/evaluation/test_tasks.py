"""Teams compared task by task: each task's missions, and where asked a team for each task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from marl_framework.evaluate import main
from tests.evaluation.test_evaluate import TRAINED, evaluate
from tests.teams import save_team

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


@pytest.mark.usefixtures("drawn")
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
    ],
)
def test_bad_input_is_one_line(
    policies: str, more: list[str], named: str, folder: Path, refused: Callable[..., str]
) -> None:
    (folder / "odd.yaml").write_text("odd: {experiment: {missions: {n_agents: many}}}")
    (folder / "name.yaml").write_text("a/b: {}")
    given = ["--tasks", str(folder / "tasks.yaml"), *(text.format(folder) for text in more)]
    given += ["--policies", policies.format(folder, task="{task}"), "--out", str(folder / "out")]
    assert named in refused(main, given)
    assert not (folder / "out").exists()
