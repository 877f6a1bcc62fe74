"""Trainings over areas of several sizes."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict, config_to_dict, with_changes
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import validate
from marl_framework.main import main
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.team import load_team, mission_config, trained_team
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from marl_framework.training.memory import memory_estimate
from marl_framework.training.summary import weights_checksum
from marl_framework.training.trainer import Trainer
from tests.small import small_config
from tests.teams import save_team
from tests.training.steps import at_step

CPU = torch.device("cpu")
SEEN = {"window": 5, "other_actions": False, "centred_other_actions": True}
AREAS = (
    {"x_dim": 30.0, "y_dim": 30.0},
    {"x_dim": 40.0, "y_dim": 20.0, "budget": 6},
    {"x_dim": 20.0, "y_dim": 20.0, "budget": (2, 3)},
)


def several(**sections: Any) -> Config:
    """Return a configuration of three areas, with a few small training steps."""
    learning = {
        "training_steps": 8,
        "batch_size": 12,
        "batch_number": 2,
        "data_passes": 1,
        "symmetries": True,
        "actor": {"learning_rate": 1e-2},
    }
    settings: dict[str, Any] = {
        "environment": {"area": AREAS},
        "observation": SEEN,
        "learning": learning,
        "evaluation": {"interval": 3, "missions": 5},
        **sections,
    }
    return small_config(**settings)


def test_each_area_has_its_own_sides_and_budget() -> None:
    config = several()
    sides = [(area.environment.x_dim, area.environment.y_dim) for area in config.areas]
    assert sides == [(30, 30), (40, 20), (20, 20)]
    assert [area.missions.budgets for area in config.areas] == [(4,), (6,), (2, 3)]
    assert all(area.areas == (area,) for area in config.areas)
    assert config.schedule.transitions_per_mission == 3 * (5 + 7 + 3.5) / 3
    assert config.schedule.places_per_step == 3 * 7 * 4 * config.schedule.rollouts_per_step
    assert small_config().areas == (small_config(),)
    assert config_from_dict(config_to_dict(config)) == config


def test_new_sides_replace_areas_and_new_areas_replace_sides() -> None:
    tree = config_to_dict(several())
    assert config_from_dict(tree, "c", ["environment.y_dim=25"]).environment.area is None
    config = config_from_dict(tree, "c", ["environment.area=[{x_dim: 25, y_dim: 25}]"])
    assert config.one_area().geometry.lattice_shape[:2] == (6, 6)
    changed = with_changes(several(), {"environment": {"x_dim": 60.0}}, "a task")
    assert changed.geometry.lattice_shape[:2] == (13, 7)


def test_one_mission_flies_over_one_area() -> None:
    with pytest.raises(ConfigError, match=r"^environment\.area lists 3 areas"):
        MissionEnvironment(several(), 2, CPU)
    alone = several(environment={"area": AREAS[1:2]})
    env = MissionEnvironment(alone, 2, CPU)
    assert (env.episode_length, env.lattice.shape) == (7, (9, 5, 3))


def test_the_draw_of_an_area_depends_on_seed_and_step_alone() -> None:
    drawn = []
    for seed in (3, 3, 4):
        trainer = Trainer(several(environment={"area": AREAS, "seed": seed}), CPU)
        drawn.append([trainer.draw_area(step) for step in range(300)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(70 < drawn[0].count(area) < 130 for area in range(3))


def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch
) -> None:
    whole, half, resumed = (Trainer(several(), CPU) for _ in range(3))
    flown = [whole.draw_area(step) for step in range(8)]
    assert len(set(flown[:4])) > 1
    assert len(set(flown[4:])) > 1
    expected = whole.train(None)["results"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "make_steps", at_step(4, Trainer.interrupt))
        half.train(None)
    assert half.steps == 4
    save_checkpoint(tmp_path / "c.pt", half.state_dict())
    resumed.load_state_dict(load_checkpoint(tmp_path / "c.pt"))
    found = resumed.train(None)["results"]
    assert found["weights_sha256"] == expected["weights_sha256"]
    assert found["best"] == expected["best"]
    assert weights_checksum(resumed.modules) == weights_checksum(whole.modules)


def test_validation_flies_all_areas() -> None:
    trainer = Trainer(several(), CPU)
    found = trainer.validation.fly()
    expected = []
    for area in trainer.config.areas:
        env = MissionEnvironment(area, 2, CPU, "validation")
        (task,) = (task for task in trainer.tasks if task.environment.config == area)
        planner = LearnedPlanner(trainer.algorithm.act, task.builder, env.lattice)
        expected.append(validate(env, planner))
    for name, values in found.items():
        assert values.equal(torch.cat([area[name] for area in expected])), name


def test_a_replay_keeps_missions_of_all_areas_if_only_some_draw_their_budgets() -> None:
    areas = ({**AREAS[0], "budget": 4}, {**AREAS[2], "budget": (2, 4)})
    config = several(environment={"area": areas}, experiment={"algorithm": "sac"},
                     logging={"save_replay": True})  # fmt: skip
    trainer = Trainer(config, CPU)
    assert {trainer.draw_area(step) for step in range(8)} == {0, 1}
    trainer.train(None)
    assert trainer.algorithm.state_dict()["replay"]["written"] == trainer.episodes


def test_memory_holds_the_missions_of_all_areas() -> None:
    parts = memory_estimate(several())
    alone = [memory_estimate(area) for area in several(evaluation={"interval": 0}).areas]
    assert parts["missions"] == sum(each["missions"] for each in alone)
    assert parts["tables"] == sum(each["tables"] for each in alone)
    assert parts["transitions"] >= max(each["transitions"] for each in alone)
    assert parts["weights"] == alone[0]["weights"]


def test_a_team_flies_over_an_area_that_it_was_not_trained_for(tmp_path: Path) -> None:
    team = load_team(str(save_team(tmp_path / "team.pt", several())))
    for x, y in ((80, 40), (15, 60)):
        sides = [f"environment.x_dim={x}", f"environment.y_dim={y}"]
        config = mission_config(None, sides, team)
        env = MissionEnvironment(config, 2, CPU)
        acting = trained_team(config, team, CPU)
        task = Trainer(config, CPU).task
        planner = LearnedPlanner(acting.act, task.builder, env.lattice)
        state = env.reset()
        actions = planner.act(state, env.generator).actions
        assert env.lattice.options(state).gather(2, actions.unsqueeze(2)).all()


BAD = {
    "environment.area=[]": "environment.area",
    "environment.area=[[50, 50]]": "environment.area",
    "environment.area=[{x_dim: 50}]": "y_dim",
    "environment.area=[{x_dim: 50, y_dim: 4}]": r"environment\.area\[0\]: .*spacing",
    "environment.area=[{x_dim: 50, y_dim: 50, budget: 0}]": "budget",
    "environment.area=[{x_dim: 50, y_dim: 50}, {x_dim: 50, y_dim: 60}]": "observation.window",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_areas_are_one_line(text: str, refused: Any) -> None:
    line = refused(main, ["--config", "params_test.yaml", "--check", "--set", text])
    assert re.search(BAD[text], line)


def test_a_replay_needs_missions_of_one_length() -> None:
    with pytest.raises(ConfigError, match=r"environment\.area: a replay"):
        Trainer(with_changes(several(), {"experiment": {"algorithm": "sac"}}, "test"), CPU)
