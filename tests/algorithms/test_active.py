"""Agents that do not act: nothing is learned from them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.ppo import NORMALIZER
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.config.parts import ALGORITHMS
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from tests.algorithms.making import make, parameters, shuffler, uneven_rollout
from tests.small import small_config

ONE_UPDATE = {"data_passes": 1, "batch_number": 1}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "teacher": {"teacher": {"run": "somewhere", "weight": 0.5}},
    "clipped": {"normalize_advantages": True, "entropy_coefficient": 0.1, "clip_ratio": 0.2},
    "parts": {"normalize_advantages": True, "micro_batch": 5, "kl_limit": 1e-3},
}


def partly_flown(num_envs: int = 6) -> Rollout:
    """Random transitions of which some were not flown; an agent that stops never acts again."""
    rollout = uneven_rollout(num_envs)
    acts = torch.rand(rollout.actions.shape, generator=shuffler(100)) < 0.6
    acts[:, 0] = True  # one whole mission
    return replace(rollout, active=acts.int().cummin(0).values.bool())


def of_active(flat: Transitions) -> Transitions:
    """Return only the transitions that were flown."""
    return replace(flat, weights=None)[flat.weights > 0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "qmix"])
def test_a_batch_teaches_what_its_active_transitions_alone_teach(name, way, monkeypatch) -> None:
    masked, alone = (make(algorithm=name, **ONE_UPDATE, **WAYS[way]) for _ in range(2))
    if way == "teacher":
        for team in (masked, alone):
            team.follow_teacher(make(seed=8).actor)
    found = masked.update(partly_flown(), 0.1, shuffler())
    passes = alone.passes
    monkeypatch.setattr(alone, "passes", lambda *given: map(of_active, passes(*given)))
    expected = alone.update(partly_flown(), 0.1, shuffler())
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key].float(), value.float(), rtol=2e-4, atol=1e-6, msg=key)
    for ours, theirs in zip(parameters(masked), parameters(alone), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


def test_a_batch_of_one_transition_has_finite_diagnostics() -> None:
    team = make(data_passes=1, batch_size=1, batch_number=2)
    for active in (None, False):
        rollout = uneven_rollout(2)
        if active is not None:
            rollout = replace(rollout, active=torch.zeros_like(rollout.actions, dtype=torch.bool))
        found = team.update(rollout, 0.1, shuffler())
        assert all(bool(value.isfinite()) for value in found.values()), found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_observations_and_actions_of_inactive_agents_change_no_bit(name: str) -> None:
    rollout = partly_flown()
    gone = ~rollout.active
    other = replace(
        rollout,
        observations=rollout.observations + 3 * gone.view(*gone.shape, 1, 1, 1),
        critic_maps=rollout.critic_maps - 2 * gone.view(*gone.shape, 1, 1, 1),
        actions=torch.where(gone, 1 - rollout.actions, rollout.actions),
        masks=rollout.masks | gone.unsqueeze(-1),
    )
    learned = []
    for each in (rollout, other):
        team = make(algorithm=name, normalize_advantages=True, entropy_coefficient=0.1)
        stats = team.update(each, 0.1, shuffler())
        learned.append([*parameters(team), *stats.values()])
    assert all(ours.equal(theirs) for ours, theirs in zip(*learned, strict=True))


@pytest.mark.parametrize("name", ["coma", "central_v", "mappo"])
def test_a_batch_without_active_agents_teaches_nothing(name: str) -> None:
    team, rollout = make(algorithm=name), uneven_rollout()
    team.update(rollout, 0.1)  # now the optimisers' moments are not 0
    before = [tensor.clone() for tensor in parameters(team)]
    found = team.update(replace(rollout, active=torch.zeros_like(rollout.actions).bool()), 0.1)
    assert found["critic_loss"] == found["actor_loss"] == 0
    assert all(a.equal(b) for a, b in zip(before, parameters(team), strict=True))


def test_rollouts_mark_the_agents_that_fly() -> None:
    config = small_config(agents=(1, 3), budget=(1, 4), num_envs=30)
    task = MissionTask(MissionEnvironment(config, 30, "cpu"))
    rollout = RolloutCollector(task, len(task.metric_names)).collect(
        lambda observation: torch.zeros(*observation.shape[:2], 6), 0.1
    )
    flew, missions = rollout.active, rollout.active.any(2)
    assert set(missions.sum(0).tolist()) == {2, 5}
    assert set(flew[0].sum(1).tolist()) == {1, 3}
    assert rollout.rewards[~missions].eq(0).all()
    assert rollout.metrics[~missions].eq(0).all()
    assert rollout.metrics[..., 2:].sum(-1).equal(flew.sum(2).float())  # one altitude each


def test_values_are_normalised_by_the_targets_of_active_agents() -> None:
    team, rollout = make(algorithm="mappo"), partly_flown()
    counted = team.transitions(rollout).targets[rollout.active.flatten()].double()
    scale = team.state_dict()[NORMALIZER]
    torch.testing.assert_close(scale["mean"] / scale["weight"], counted.mean())
    torch.testing.assert_close(scale["square"] / scale["weight"], counted.square().mean())


@pytest.mark.parametrize("active_moved", [False, True])
def test_the_limit_on_kl_measures_active_agents(active_moved: bool) -> None:
    team, rollout = make(kl_limit=0.05, **ONE_UPDATE), partly_flown()
    logits = team.act(rollout.observations.flatten(0, 1)).view(rollout.probabilities.shape)
    policy = policy_probabilities(logits, rollout.masks, 0.1)
    far = torch.tensor([0.9, 0.1]).expand_as(policy)
    moved = (rollout.active == active_moved).unsqueeze(-1)
    stats = team.update(replace(rollout, probabilities=far.where(moved, policy)), 0.1)
    assert stats["kl_halted"] == active_moved
