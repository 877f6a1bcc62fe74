"""Labels of teachers, and the losses of students."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
import torch

from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.distillation.lesson import Lesson, Samples, divergence
from marl_framework.distillation.teachers import labels, planner_teacher
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.symmetry import Symmetries
from marl_framework.planners.random_flight import RandomPlanner
from marl_framework.planners.team import find_checkpoint, trained_team
from tests.distillation.hand_made import Scored
from tests.planners.missions import flown
from tests.small import small_config
from tests.teams import save_team
from tests.turned import turned_mission

CPU = torch.device("cpu")
ANY = torch.Generator()


def start(config: Config, missions: int = 6) -> tuple[MissionEnvironment, MissionState]:
    env = MissionEnvironment(config, missions, "cpu")
    return env, flown(env, 2)


@pytest.mark.parametrize("says", ["scores", "policy", "nothing"])
def test_labels_of_a_planner_are_those_of_a_loop(says: str) -> None:
    env, state = start(small_config(dims=(10.0, 10.0), agents=4), 30)  # a crowd on 3 x 3 positions
    planner = Scored(env, says)
    masks, found = RandomPlanner(env.lattice).act(state, ANY).masks, planner.act(state, ANY)
    advice = planner_teacher(planner, temperature=2.0)(state, ANY)
    policies, known = labels(advice.logits, masks)
    scores = planner.scores(state)
    for e, i in product(range(30), range(4)):
        weights = torch.zeros(6)
        for action in masks[e, i].nonzero().flatten():
            if says == "nothing":
                weights[action] = float(action == found.actions[e, i])
            elif found.masks[e, i, action]:
                weights[action] = (scores[e, i, action] / (2.0 if says == "scores" else 1.0)).exp()
        assert known[e, i] == (weights.sum() > 0)
        if known[e, i]:
            torch.testing.assert_close(policies[e, i], weights / weights.sum())
    if says == "nothing":
        assert 0 < known.sum() < known.numel()  # some of its actions are forbidden here
    assert policies.isfinite().all()
    assert torch.equal(advice.actions, found.actions)


def test_a_team_sees_its_own_channels_on_the_missions_of_the_student(tmp_path: Path) -> None:
    """Here beliefs that only the teacher looks at, which missions keep up to date when asked."""
    ours = small_config(seed=4)
    theirs = small_config(observation={"uncertainty": True, "agent_id": False})
    checkpoint = find_checkpoint(str(save_team(tmp_path / "t.pt", theirs)))
    settings = {"teachers": {"a": str(checkpoint.path)}, "missions": 6}
    student = ours.model_validate({**config_to_dict(ours), "distillation": settings}, strict=False)
    lesson = Lesson(student, "a", 0, CPU)
    rollout, samples, _ = lesson.fly(make_algorithm(student, "cpu").act, 0.0)
    assert samples.observations.shape[1] == len(ours.observation.actor_channels)
    assert samples.weights.all()
    team = trained_team(theirs, checkpoint, "cpu")
    env = MissionEnvironment(theirs, 6, "cpu", seed=4)
    builder = ObservationBuilder(theirs, env.lattice, env.camera)
    state = env.reset()
    wanted = []
    for t in range(env.episode_length):
        logits = team.act(builder.actor(state))
        torch.rand(logits.shape, generator=env.generator)  # the student's choices
        wanted.append(policy_probabilities(logits, rollout.masks[t], 0.0))
        env.step(state, rollout.actions[t], env.draw_step(reuse=True))
    torch.testing.assert_close(samples.labels, torch.stack(wanted).flatten(0, 2))


def test_an_action_without_a_finite_score_is_not_advised() -> None:
    class Broken(Scored):
        def scores(self, state: MissionState) -> torch.Tensor:
            scores = super().scores(state)
            scores[..., 0] = torch.inf
            return scores

    env, state = start(small_config())
    advice = planner_teacher(Broken(env), 1.0)(state, ANY)
    policies, known = labels(advice.logits, advice.masks)
    assert policies.isfinite().all()
    assert bool((policies[..., 0] == 0).all())
    assert bool(known.all())


def test_a_turned_observation_has_the_turned_label() -> None:
    config = small_config(observation={"centred_probability": True, "agent_id": False})
    env, state = start(config)
    symmetries = Symmetries(config, "cpu")

    def samples_of(seen: MissionState) -> Samples:
        builder = ObservationBuilder(config, env.lattice, env.camera)
        masks = env.lattice.boundary_mask(seen.positions)
        advice = planner_teacher(Scored(env), 1.0)(seen, ANY)
        policies, known = labels(advice.logits.masked_fill(~masks, -torch.inf), masks)
        flat = (t.flatten(0, 1) for t in (builder.actor(seen), masks, policies, known.float()))
        return Samples(*flat)

    position = config.observation.actor_channels.index("centred_probability")
    found = set()
    for number in range(8):
        turn = (bool(number & 4), bool(number & 2), bool(number & 1))
        wanted = samples_of(turned_mission(env, state, turn))
        for which in range(8):
            got = samples_of(state).turn(symmetries, torch.full((18,), which))
            shown = got.observations[:, position], wanted.observations[:, position]
            if torch.allclose(*shown, atol=1e-5):
                torch.testing.assert_close(got.labels, wanted.labels)
                assert torch.equal(got.masks, wanted.masks)
                found.add((number, which))
    assert len(found) == len({which for _, which in found}) == 8


def test_the_divergence_is_that_of_its_formula() -> None:
    masks = torch.tensor([[True, True, False], [True, True, True], [True, False, True]])
    teacher = torch.tensor([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    policy = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.9, 0.0, 0.1]])
    batch = Samples(torch.zeros(3, 1, 1, 1), masks, teacher, torch.tensor([1.0, 1.0, 0.0]))
    expected = 0.0
    for row, action in product(range(2), range(3)):  # the third has no label
        p, q = float(teacher[row, action]), float(policy[row, action])
        expected += p * math.log(p / q) / 2 if p else 0
    assert float(divergence(batch, policy)) == pytest.approx(expected, rel=1e-5)
