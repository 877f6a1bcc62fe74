"""Agents that do not act: nothing is learned from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.batch import Transitions, diagnostics
from marl_framework.algorithms.losses import td_lambda_returns
from marl_framework.algorithms.policy import kl_divergence
from marl_framework.algorithms.ppo import PPO
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.config.parts import ALGORITHMS
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from tests.algorithms.test_state_values import flown, make
from tests.small import small_config

WAYS: list[dict[str, Any]] = [
    {},
    {"normalize_advantages": True, "entropy_coefficient": 0.1, "clip_ratio": 0.2},
    {"normalize_advantages": True, "micro_batch": 5, "kl_limit": 1e-3},
]


def partly_flown(num_envs: int = 6, seed: int = 0) -> Rollout:
    """Random transitions of which some were not flown; an agent that stops never acts again."""
    rollout = flown(seed, num_envs)
    generator = torch.Generator().manual_seed(seed + 100)
    acts = torch.rand(rollout.actions.shape, generator=generator) < 0.6
    acts[:, 0] = True  # one whole mission
    return replace(rollout, active=acts.int().cummin(0).values.bool())


def of_active(batch: Transitions) -> Transitions:
    """Return the transitions that were flown, and nothing of the others."""
    assert batch.weights is not None
    return replace(batch, weights=None)[batch.weights > 0]


def weights(team: ActorCritic) -> list[torch.Tensor]:
    return [p for module in team.modules.values() for p in module.parameters()]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_batch_is_learned_from_as_its_active_transitions_alone(name: str, way: int) -> None:
    options = {**WAYS[way], "max_skipped_updates": 0}
    masked, alone = make(name, **options), make(name, **options)
    whole = masked.transitions(partly_flown())
    found = masked._learn(whole.balanced(), 0.1)
    expected = alone._learn(of_active(alone.transitions(partly_flown())), 0.1)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key].float(), value.float(), rtol=2e-4, atol=1e-6, msg=key)
    for ours, theirs in zip(weights(masked), weights(alone), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_inactive_agents_saw_and_did_changes_no_bit(name: str) -> None:
    rollout = partly_flown()
    assert rollout.active is not None
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
        team = make(name, normalize_advantages=True, entropy_coefficient=0.1)
        stats = team.update(each, 0.1, torch.Generator().manual_seed(1))
        learned.append((weights(team), stats))
    for ours, theirs in zip(learned[0][0], learned[1][0], strict=True):
        assert ours.equal(theirs)
    for key, value in learned[0][1].items():
        assert value.equal(learned[1][1][key]), key


def test_returns_end_where_an_agent_acts_no_more() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (
        torch.randn(6, 1, generator=generator),
        torch.randn(6, 1, 2, generator=generator),
    )
    active = torch.tensor([[3, 6]]) > torch.arange(6).view(-1, 1, 1)
    found = td_lambda_returns(rewards, values, 0.9, 0.7, active)
    assert found[:, :, 1].equal(td_lambda_returns(rewards, values, 0.9, 0.7)[:, :, 1])
    short = td_lambda_returns(rewards[:3], values[:3], 0.9, 0.7)
    assert found[:3, :, 0].equal(short[:, :, 0])


def test_a_batch_in_which_nobody_acts_teaches_nothing() -> None:
    team = make("coma")
    batch = replace(team.transitions(flown()), weights=torch.zeros(12))
    before = [p.clone() for p in weights(team)]
    found = team._learn(batch.balanced(), 0.1, describe=False)
    assert found["critic_loss"] == found["actor_loss"] == 0
    for ours, theirs in zip(weights(team), before, strict=True):
        assert ours.equal(theirs)


def test_rollouts_say_who_flew() -> None:
    config = small_config(agents=(1, 3), budget=(1, 4), num_envs=30)
    task = MissionTask(MissionEnvironment(config, 30, "cpu"))
    rollout = RolloutCollector(task, len(task.metric_names)).collect(
        lambda observation: torch.zeros(*observation.shape[:2], 6), 0.1
    )
    assert rollout.active is not None
    flew, missions = rollout.active, rollout.active.any(2)
    assert set(missions.sum(0).tolist()) == {2, 5}
    assert set(flew[0].sum(1).tolist()) == {1, 3}
    assert rollout.rewards[~missions].eq(0).all()
    assert rollout.metrics[~missions].eq(0).all()
    assert rollout.metrics[..., 2:].sum(-1).equal(flew.sum(2).float())  # one altitude each


def test_values_are_normalised_by_the_targets_of_active_agents() -> None:
    team, rollout = make("mappo"), partly_flown()
    assert isinstance(team, PPO)
    assert rollout.active is not None
    found = team.transitions(rollout)
    counted = found.targets[rollout.active.flatten()].double()
    weight = team._normalizer.weight
    torch.testing.assert_close(team._normalizer.mean / weight, counted.mean())
    torch.testing.assert_close(team._normalizer.square / weight, counted.square().mean())


def test_the_policies_distance_is_that_of_active_agents() -> None:
    team = make("coma", kl_limit=0.05)
    batch = team.transitions(partly_flown()).balanced()
    assert batch.weights is not None
    far = torch.tensor([0.9, 0.1]).expand_as(batch.old_probabilities)
    gone = (batch.weights == 0).unsqueeze(1)
    team._watch_kl([batch], [batch.old_probabilities.where(~gone, far)])
    assert team._halted == 0
    team._watch_kl([batch], [batch.old_probabilities.where(gone, far)])
    assert team._halted == 1


def test_the_divergence_from_a_teacher_is_that_of_active_agents() -> None:
    batch = make("coma").transitions(partly_flown()).balanced()
    policy = batch.old_probabilities
    batch = replace(batch, teacher=policy.flip(0).where(batch.masks, 0.0) + 0.01)
    active = of_active(batch)
    values, advantages = policy + 1.0, batch.targets
    found = diagnostics(batch, values, policy, advantages)["teacher_kl"]
    alone = kl_divergence(active.teacher, active.old_probabilities).mean()
    torch.testing.assert_close(found, alone)
    assert not torch.allclose(found, kl_divergence(batch.teacher, policy).mean())
