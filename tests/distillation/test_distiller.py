"""A student's training: which states it learns from, that it learns, and that it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.distillation.lesson import Lesson, Samples, divergence
from marl_framework.distillation.trainer import Distiller
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from marl_framework.training.summary import weights_checksum
from tests.distillation.hand_made import ToTheCorner
from tests.small import small_config
from tests.teams import save_predictor, save_team

CPU = torch.device("cpu")
CORNER = "tests.distillation.hand_made.ToTheCorner"
FIELD = {"sensor": {"simulation": {"kinds": ["random_field"], "cluster_radius": 3.0}}}
MANY = {"experiment": {"missions": {"n_agents": 4}, "constraints": {"budget": 2}}}


def student(**settings: Any) -> Config:
    config = small_config(
        evaluation={"interval": 2, "missions": 2},
        learning={"symmetries": settings.pop("symmetries", False)},
    )
    small = {"missions": 4, "rounds": 4, "updates": 6, "batch_size": 16, "replay_rounds": 2}
    return with_changes(config, {"distillation": {**small, **settings}}, "test")


def fly(
    config: Config, name: str = "a", share: float = 0.0
) -> tuple[Rollout, Samples, dict[str, Tensor]]:
    return Lesson(config, name, 0, CPU).fly(Distiller(config, CPU).algorithm.act, share)


def test_without_a_share_the_states_are_those_of_the_student_alone() -> None:
    config = student(teachers={"a": CORNER})
    ours, samples, _ = fly(config)
    task = MissionTask(MissionEnvironment(config, 4, CPU))
    act = Distiller(config, CPU).algorithm.act
    theirs = RolloutCollector(task, len(task.metric_names)).collect(act, 0.0)
    for name, tensor in theirs.tensors().items():
        assert torch.equal(ours.tensors()[name], tensor)
    assert torch.equal(samples.observations, theirs.observations.flatten(0, 2).half())


def test_with_the_whole_share_the_teacher_makes_all_moves() -> None:
    config = student(teachers={"a": CORNER})
    rollout, samples, found = fly(config, share=1.0)
    task = MissionTask(MissionEnvironment(config, 4, CPU))
    teacher = ToTheCorner(task.environment)
    for t in range(task.episode_length):
        decision = teacher.act(task.state, task.generator)
        assert torch.equal(rollout.actions[t], decision.actions)
        assert torch.equal(rollout.masks[t], decision.masks)
        torch.rand(decision.masks.shape, generator=task.generator)  # the student's choices
        torch.rand(4, generator=task.generator)  # who chooses
        task.step(decision.actions)
    assert found["left_out"] == 0
    assert torch.equal(samples.labels.argmax(-1), rollout.actions.flatten())


def test_states_that_a_planner_says_nothing_of_are_counted_and_teach_nothing() -> None:
    config = student(
        tasks={"crowd": {"experiment": {"missions": {"n_agents": 9}}}},
        teachers={"crowd": "tests.distillation.hand_made.decided"},
    )
    _, samples, found = fly(config, "crowd")
    silent = samples.weights == 0
    assert 0 < found["left_out"] == silent.sum() < len(silent)
    policy = samples.masks / samples.masks.sum(-1, keepdim=True)
    before = divergence(samples, policy)
    samples.labels[silent] = samples.labels[silent].flip(-1)
    assert divergence(samples, policy) == before


def test_places_of_absent_uavs_are_no_states() -> None:
    mixed = {"experiment": {"missions": {"n_agents": [1, 3]}, "constraints": {"budget": [1, 4]}}}
    config = student(tasks={"mixed": mixed}, teachers={"mixed": CORNER}, missions=8)
    rollout, samples, found = fly(config, "mixed")
    assert rollout.active is not None
    flown = rollout.active.flatten()
    assert found["left_out"] == 0
    assert len(samples.weights) == flown.sum() < len(flown)
    observations, masks = (
        part.flatten(0, 2)[flown] for part in (rollout.observations, rollout.masks)
    )
    assert torch.equal(samples.observations, observations.half())
    assert torch.equal(samples.masks, masks)


def test_a_student_learns_what_its_teacher_does() -> None:
    config = small_config(dims=(10.0, 10.0), agents=2, evaluation={"interval": 0})
    settings = {"teachers": {"a": CORNER}, "rounds": 6, "missions": 16, "updates": 80}
    more = {"batch_size": 64, "learning_rate": 0.01, "teacher_rounds": 2}
    config = with_changes(config, {"distillation": {**settings, **more}}, "test")
    trainer = Distiller(config, CPU)
    found = [trainer.round() for _ in range(6)]
    assert found[0]["agreement/a"] < 0.6
    assert found[-1]["agreement/a"] > 0.9
    assert found[-1]["loss/a"] < found[0]["loss/a"] / 2
    assert trainer.is_over()


def test_tasks_differ_in_terrain_team_and_length_and_are_measured_apart(tmp_path: Path) -> None:
    team = save_team(tmp_path / "team.pt", small_config(agents=2))
    config = student(
        tasks={"field": FIELD, "many": MANY | {"distillation": {"missions": 2}}},
        teachers={"field": "information_gain", "many": "oracle", "own": str(team)},
        symmetries=True,
    )
    trainer = Distiller(config, CPU)
    teams = {lesson.name: lesson.n_agents for lesson in trainer.lessons}
    assert teams == {"field": 3, "many": 4, "own": 2}
    first, second = trainer.round(), trainer.round()
    for name in teams:
        assert {f"{what}/{name}" for what in ("loss", "agreement", "return", "f1")} < first.keys()
        assert f"validation_entropy/{name}" in second
        assert f"validation_entropy/{name}" not in first
    assert len({first[f"roi_entropy/{name}"] for name in teams}) == 3
    assert first["skipped_updates"] == 0
    states = 4 * 3 * 5 + 2 * 4 * 3 + 4 * 2 * 5  # missions, UAVs, moves
    assert [len(samples.weights) for samples in trainer._replay] == [states]
    assert len(trainer._symmetries or ()) == 8


@pytest.mark.parametrize("algorithm", ["coma", "central_v", "sac", "qmix"])
def test_a_network_for_any_team_learns_from_teams_of_all_sizes_at_once(algorithm: str) -> None:
    attention = {"type": "attention", "conv_channels": 8, "hidden_dim": 8}
    tasks = {"two": {"experiment": {"missions": {"n_agents": 2}}}, "many": MANY}
    changes = {
        "observation": {"heard_uavs": True},
        "networks": {"actor": attention, "critic": attention},
        "experiment": {"algorithm": algorithm},
    }
    teachers = {"two": CORNER, "many": "information_gain"}
    config = student(tasks=tasks, teachers=teachers, symmetries=True)
    trainer = Distiller(with_changes(config, changes, "attention"), CPU)
    (two,) = [lesson for lesson in trainer.lessons if lesson.name == "two"]
    shown, own = two.observe(), two.builder.actor(two.state)
    assert shown.shape[2] == own.shape[2] + 2
    assert not shown[:, :, 2:4].any()
    act = trainer.algorithm.act
    torch.testing.assert_close(act(shown), act(own))
    found = trainer.round()
    assert found["skipped_updates"] == 0
    assert found["critic_loss"] > 0


def test_the_share_of_the_teacher_falls_and_the_replay_holds_the_latest_rounds() -> None:
    teacher = {"teacher_share": 0.6, "teacher_rounds": 3}
    settings = {"updates": 1, "replay_rounds": 3, "rounds": 5}
    trainer = Distiller(student(teachers={"a": CORNER}, **teacher, **settings), CPU)
    shares, replays = [], []
    for _ in range(5):
        shares.append(trainer.round()["teacher_share"])
        replays.append([len(kept["weights"]) for kept in trainer.state_dict()["replay"]])
    assert shares == pytest.approx([0.6, 0.4, 0.2, 0.0, 0.0])
    states = 4 * 3 * 5  # missions, UAVs, moves
    assert replays == [[states], [states] * 2, [states] * 2, [states] * 2, []]


def test_the_critic_learns_beside_the_actor() -> None:
    trainer = Distiller(student(teachers={"a": CORNER}), CPU)
    before = [p.clone() for p in trainer.modules["critic"].parameters()]
    assert trainer.round()["critic_loss"] > 0
    after = list(trainer.modules["critic"].parameters())
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    for ours, theirs in zip(trainer.modules["target_critic"].parameters(), after, strict=True):
        assert torch.equal(ours, theirs)


def test_updates_of_the_critic_that_are_not_finite_are_counted() -> None:
    config = student(teachers={"a": CORNER, "b": "information_gain"})
    function = "tests.distillation.hand_made.not_a_number"
    changes = {"experiment": {"reward": {"function": function}}}
    assert Distiller(with_changes(config, changes, "test"), CPU).round()["skipped_updates"] == 2


WINDOW = {"observation": {"window": 5, "other_actions": False, "centred_other_actions": True}}
AREAS = [{"x_dim": 30, "y_dim": 30}, {"x_dim": 40, "y_dim": 20, "budget": 6}]


def test_tasks_may_have_several_areas(tmp_path: Path) -> None:
    team = save_team(tmp_path / "team.pt", small_config(dims=(60.0, 40.0)))
    config = with_changes(
        student(
            tasks={"one": {"environment": {"x_dim": 60, "y_dim": 40}}, "two": {}},
            teachers={"one": str(team), "two": "search"},
            symmetries=True,
        ),
        WINDOW | {"environment": {"area": AREAS}},
        "test",
    )
    trainer = Distiller(config, CPU)
    lattices = {ls.name: ls.environment.lattice.shape[:2] for ls in trainer.lessons}
    assert lattices == {"one": (13, 9), "two-30x30": (7, 7), "two-40x20": (9, 5)}
    first, second = trainer.round(), trainer.round()
    states = 3 * (4 * 5 + 2 * 5 + 2 * 7)  # UAVs, missions and moves: the areas share the missions
    assert [len(samples.weights) for samples in trainer._replay] == [states]
    assert trainer._replay[0].observations.shape[2:] == (5, 5)
    assert first["skipped_updates"] == 0
    assert "validation_entropy/two-40x20" in second
    save_checkpoint(tmp_path / "c.pt", trainer.state_dict())
    rest = trainer.round()
    resumed = Distiller(config, CPU)
    resumed.load_state_dict(load_checkpoint(tmp_path / "c.pt"))
    assert resumed.round() == rest


def test_areas_of_one_size_have_lessons_of_their_own() -> None:
    areas = [AREAS[0], AREAS[1], {**AREAS[0], "budget": 3}]
    config = with_changes(
        student(tasks={"a": {}}, teachers={"a": CORNER}),
        WINDOW | {"environment": {"area": areas}},
        "test",
    )
    names = [lesson.name for lesson in Distiller(config, CPU).lessons]
    assert names == ["a-30x30-1", "a-40x20", "a-30x30-3"]


def test_missions_of_all_areas_have_the_largest_sides_for_every_teacher(tmp_path: Path) -> None:
    sees = {**WINDOW["observation"], "uncertainty": True}
    team = save_team(tmp_path / "team.pt", small_config(observation=sees))
    config = with_changes(
        student(tasks={"a": {}}, teachers={"a": str(team)}),
        WINDOW | {"environment": {"area": AREAS}},
        "test",
    )
    for lesson in Distiller(config, CPU).lessons:
        assert lesson.environment.config.observation.uncertainty
        assert lesson.environment.config.largest_sides == (40, 30)


@pytest.mark.parametrize("algorithm", ["coma", "sac"])
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, algorithm: str
) -> None:
    team = save_team(tmp_path / "team.pt", small_config())
    teachers = {"field": "information_gain", "own": str(team)}
    config = student(tasks={"field": FIELD}, teachers=teachers, symmetries=True)
    changes = {"experiment": {"algorithm": algorithm}, "logging": {"save_replay": True}}
    config = with_changes(config, changes, "test")
    whole = Distiller(config, CPU)
    whole.round(), whole.round()
    save_checkpoint(tmp_path / "c.pt", whole.state_dict())
    rest = [whole.round(), whole.round()]
    resumed = Distiller(config, CPU)
    resumed.load_state_dict(load_checkpoint(tmp_path / "c.pt"))
    assert [resumed.round(), resumed.round()] == rest
    assert weights_checksum(resumed.modules) == weights_checksum(whole.modules)


@pytest.mark.parametrize("teacher", ["team", "search"])
def test_weights_that_have_changed_are_noticed(tmp_path: Path, teacher: str) -> None:
    file = tmp_path / "weights.pt"

    def save(seed: int) -> None:
        if teacher == "team":
            save_team(file, small_config(), seed)
        else:
            save_predictor(file, small_config(), seed)

    save(1)
    reads = {"experiment": {"baselines": {"search": {"predictor": str(file)}}}}
    name, key = str(file), "distillation.teachers.own"
    if teacher == "search":
        name, key = teacher, "experiment.baselines.search.predictor"
    config = with_changes(student(teachers={"own": name}), reads, "test")
    running = Distiller(config, CPU)
    Distiller(config, CPU).load_state_dict(running.state_dict())
    save(2)
    state = running.state_dict()  # which still has the former weights
    with pytest.raises(ConfigError, match=rf"^{key}: .*weights\.pt"):
        Distiller(config, CPU).load_state_dict(state)
