"""An actor that learns next to a teacher."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.replay import Replayed
from marl_framework.config.parts import ALGORITHMS
from tests.algorithms.making import make, rollout_on, shuffler


def taught(weight: float, anneal_steps: int = 0, **options: Any) -> ActorCritic:
    teacher = {"run": "somewhere", "weight": weight, "anneal_steps": anneal_steps}
    made = make(**options, actor={"gradient_norm": 1e9}, clip_ratio=0.2, teacher=teacher)
    made.follow_teacher(make(seed=8).actor)
    return made


def gradients_of_one_update(made: ActorCritic) -> dict[str, Tensor]:
    if isinstance(made, Replayed):  # each mission once instead of draws
        made.passes = lambda flown, *_: [made.with_teacher(made.transitions(flown))]
    made.update(rollout_on(num_envs=4), 0.1, shuffler())
    return {name: p.grad for name, p in made.actor.named_parameters()}


@pytest.mark.parametrize("micro_batch", [0, 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_divergence_adds_its_gradient(algorithm: str, micro_batch: int) -> None:
    options = {"algorithm": algorithm, "micro_batch": micro_batch}
    once = {**options, "data_passes": 1, "batch_number": 1}
    found = gradients_of_one_update(taught(0.7, **once))
    without = gradients_of_one_update(taught(0.0, **once))
    student = make(algorithm=algorithm).actor
    rollout = rollout_on(num_envs=4)
    seen, masks = rollout.observations.flatten(0, 2), rollout.masks.flatten(0, 2)
    weights = {name: p.detach().requires_grad_() for name, p in student.named_parameters()}
    target = make(seed=8).actor(seen).softmax(-1).detach()
    policy = functional_call(student, weights, (seen,)).softmax(-1)
    policy = 0.9 * policy + 0.1 * masks / masks.sum(-1, keepdim=True)
    divergence = (target * (target / policy).log()).sum(-1).mean()
    (0.7 * divergence).backward()
    for name, weight in weights.items():
        torch.testing.assert_close(
            found[name] - without[name], weight.grad, rtol=1e-3, atol=1e-6, msg=name
        )


def test_the_policy_approaches_the_teacher() -> None:
    made, rollout = taught(20.0), rollout_on(num_envs=8)
    found = [float(made.update(rollout, 0.0)["teacher_kl"]) for _ in range(40)]
    assert found[-1] < 0.2 * found[0]


def test_the_weight_falls_to_0_and_the_teacher_is_then_unused() -> None:
    once = {"data_passes": 1, "batch_number": 1}
    made, plain = taught(2.0, anneal_steps=4, **once), make(clip_ratio=0.2, **once)
    asked, weights = [], []

    class Counted(nn.Module):
        def forward(self, maps: Tensor) -> Tensor:
            asked.append(made.training_steps)
            return torch.tensor([3.0, 0.0]).expand(len(maps), -1)

    made.follow_teacher(Counted())
    for _ in range(6):
        plain.load_state_dict(made.state_dict())
        stats, without = (team.update(rollout_on(), 0.1, shuffler()) for team in (made, plain))
        added = stats["actor_loss"] - without["actor_loss"]
        weights.append(float(added / stats.get("teacher_kl", 1.0)))
    assert asked == [0, 1, 2, 3]
    assert weights == pytest.approx([2.0, 1.5, 1.0, 0.5, 0.0, 0.0], abs=1e-4)
