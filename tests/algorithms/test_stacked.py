"""Learners stacked into one learn what each learns alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.stacked import StackedLearners, stacks
from marl_framework.config.errors import ConfigError
from tests.algorithms.making import concatenate, make, rollout_on, settings

RATES = (3e-3, 1e-3, 1e-2)
ROUNDS, MISSIONS = 2, 6


def learners(**options: Any) -> list[ActorCritic]:
    """Three that differ in weights and learning rates."""
    return [
        make(seed, actor={"learning_rate": rate}, critic={"learning_rate": 3 * rate}, **options)
        for seed, rate in enumerate(RATES)
    ]


def generators() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(len(RATES))]


def rounds_of(seed: int, active: bool = False) -> list[Rollout]:
    """A rollout of each round."""
    found = []
    for number in range(ROUNDS):
        rollout = rollout_on(num_envs=MISSIONS, seed=100 * seed + number)
        if active:
            rollout.active = torch.rand(rollout.actions.shape) < 0.7
            rollout.active[:, 0] = True
        found.append(rollout)
    return found


def joined(rounds: list[list[Rollout]]) -> Rollout:
    """The rollouts of all learners: rounds after each other, in each the learners."""
    return concatenate([each[number] for number in range(ROUNDS) for each in rounds])


def check_alike(one: ActorCritic, other: ActorCritic) -> None:
    """Networks, moments and counters agree but for rounding."""
    assert one.training_steps == other.training_steps
    for name, module in one.modules.items():
        for first, second in zip(
            module.parameters(), other.modules[name].parameters(), strict=True
        ):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=2e-6)
    for name in ("actor_optimizer", "critic_optimizer"):
        first, second = (getattr(each, name).state_dict() for each in (one, other))
        assert first["param_groups"] == second["param_groups"]
        assert first["state"].keys() == second["state"].keys()
        for key, known in first["state"].items():
            for moment, value in known.items():
                found = second["state"][key][moment]
                assert found.data_ptr() != value.data_ptr()
                torch.testing.assert_close(value, found, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["coma", "central_v", "iac"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"advantage": "return", "normalize_advantages": True, "clip_ratio": 0.2},
        {"entropy_coefficient": 0.1, "copy_rate": 2, "data_passes": 3, "batch_number": 3},
        {"target_update_mode": "soft", "tau": 0.3},
    ],
)
@pytest.mark.parametrize("active", [False, True])
def test_stacked_learners_learn_what_each_learns_alone(
    algorithm: str, options: dict[str, Any], active: bool
) -> None:
    alone = learners(algorithm=algorithm, **options)
    together = copy.deepcopy(alone)
    stack = StackedLearners(together)
    draws, same_draws = generators(), generators()
    for number in range(4):
        rounds = [rounds_of(10 * number + place, active) for place in range(len(RATES))]
        steps, rate = 1 + number % 2, 1 - number / 5
        expected = [
            learner.update(concatenate(flown), 0.1, generator, steps, rate)
            for learner, flown, generator in zip(alone, rounds, draws, strict=True)
        ]
        found = stack.update(joined(rounds), 0.1, same_draws, steps, rate, ROUNDS)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                torch.testing.assert_close(
                    mine[name].double(), value.double(), rtol=2e-3, atol=2e-5, msg=name
                )
    for one, other in zip(alone, together, strict=True):
        check_alike(one, other)
    for one, other in zip(draws, same_draws, strict=True):
        assert torch.equal(one.get_state(), other.get_state())


def test_stacked_learners_act_as_each_alone() -> None:
    alone = learners()
    stack = StackedLearners(alone)
    observations = torch.randn(len(RATES) * MISSIONS, 2, *rollout_on().observations.shape[-3:])
    parts = observations.split(MISSIONS)
    expected = [each.act(part) for each, part in zip(alone, parts, strict=True)]
    torch.testing.assert_close(stack.act(observations), torch.cat(expected))


def test_numbers_that_are_not_finite_stop_one_learner_alone() -> None:
    alone = learners()
    together = copy.deepcopy(alone)
    stack = StackedLearners(together)
    rounds = [rounds_of(place) for place in range(len(RATES))]
    for rollout in rounds[1]:
        rollout.rewards[:] = torch.nan
    found = stack.update(joined(rounds), 0.1, generators(), 1, 1.0, ROUNDS)
    for learner, flown, generator in zip(alone, rounds, generators(), strict=True):
        learner.update(concatenate(flown), 0.1, generator)
    assert [int(each["skipped_updates"]) for each in found] == [0, 4, 0]
    for one, other in zip(alone, together, strict=True):
        check_alike(one, other)


GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"algorithm": "mappo", "clip_ratio": 0.2}, "experiment.algorithm: mappo"),
        ({"micro_batch": 4}, "learning.micro_batch"),
        ({"kl_limit": 0.1}, "learning.kl_limit"),
        ({"teacher": {"run": "x", "weight": 0.1}}, "learning.teacher"),
        ({"compute": {"gradient_checkpointing": True}}, "compute.gradient_checkpointing"),
        ({"compute": {"precision": "float16"}}, "compute.precision: float16"),
    ],
)
def test_what_keeps_learners_apart_is_named(changes: dict[str, Any], key: str) -> None:
    assert stacks(settings(**changes), GPU) == (False, key)
    if "float16" not in key:
        assert stacks(settings(**changes), CPU) == (False, "")
    always = settings(**{**changes, "compute": {**changes.get("compute", {}), **ALWAYS}})
    with pytest.raises(ConfigError, match=f"always does not work with {key}; use auto"):
        stacks(always, GPU)


ALWAYS = {"stack_networks": "always"}


def test_learners_are_stacked_on_a_gpu_or_where_they_shall_be() -> None:
    assert stacks(settings(), GPU) == (True, "")
    assert stacks(settings(), CPU) == (False, "")
    assert stacks(settings(compute=ALWAYS), CPU) == (True, "")
    assert stacks(settings(compute={"stack_networks": "never"}), GPU) == (False, "")
