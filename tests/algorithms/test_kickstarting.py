"""An actor that is pulled to a teacher while it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.graphs import Graphs
from marl_framework.config.errors import ConfigError
from marl_framework.config.parts import ALGORITHMS
from tests.algorithms.making import make, rollout_on
from tests.algorithms.toy_game import ToyGame


class Unused:
    """A backend that is never called."""


def pulled(weight: float, anneal_steps: int = 0, **options: Any) -> ActorCritic:
    teacher = {"run": "somewhere", "weight": weight, "anneal_steps": anneal_steps}
    actor = {"learning_rate": 3e-3, "gradient_norm": 1e9}
    made = make(**options, actor=actor, clip_ratio=0.2, teacher=teacher)
    made.follow_teacher(make(seed=8).actor)
    return made


def gradients_of_one_update(made: ActorCritic) -> dict[str, Tensor]:
    made.update(rollout_on(num_envs=4), 0.1, torch.Generator().manual_seed(0))
    return {name: p.grad for name, p in made.actor.named_parameters()}


@pytest.mark.parametrize("micro_batch", [0, 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_gradient_gets_that_of_the_divergence(algorithm: str, micro_batch: int) -> None:
    options = {"algorithm": algorithm, "micro_batch": micro_batch}
    once = {**options, "data_passes": 1, "batch_number": 1}
    found = gradients_of_one_update(pulled(0.7, **once))
    without = gradients_of_one_update(pulled(0.0, **once))
    student = make(algorithm=algorithm, clip_ratio=0.2).actor
    teacher = make(seed=8).actor
    rollout = rollout_on(num_envs=4)
    seen, masks = rollout.observations.flatten(0, 2), rollout.masks.flatten(0, 2)

    weights = {name: p.detach().requires_grad_() for name, p in student.named_parameters()}
    target = teacher(seen).masked_fill(~masks, -torch.inf).softmax(-1).detach()
    policy = functional_call(student, weights, (seen,)).masked_fill(~masks, -torch.inf).softmax(-1)
    policy = 0.9 * policy + 0.1 * masks / masks.sum(-1, keepdim=True)
    divergence = (target * (target / policy).log()).sum(-1).mean()
    (0.7 * divergence).backward()
    for name, weight in weights.items():
        torch.testing.assert_close(
            found[name] - without[name], weight.grad, rtol=1e-3, atol=1e-6, msg=name
        )


def test_a_pull_of_weight_0_leaves_every_bit() -> None:
    ours, theirs = (
        pulled(0.0),
        make(actor={"learning_rate": 3e-3, "gradient_norm": 1e9}, clip_ratio=0.2),
    )
    for made in (ours, theirs):
        stats = made.update(rollout_on(), 0.1, torch.Generator().manual_seed(0))
        assert "teacher_kl" not in stats
    for name, module in ours.modules.items():
        for a, b in zip(module.parameters(), theirs.modules[name].parameters(), strict=True):
            assert torch.equal(a, b)


def test_the_policy_comes_closer_to_the_teacher() -> None:
    made = pulled(20.0)
    rollout = rollout_on(num_envs=8)
    found = [float(made.update(rollout, 0.0)["teacher_kl"]) for _ in range(40)]
    assert found[-1] < 0.2 * found[0]


def test_the_pull_falls_to_nothing_and_the_teacher_is_asked_no_more() -> None:
    made = pulled(2.0, anneal_steps=4)
    asked = []

    class Counted(nn.Module):
        def forward(self, maps: Tensor) -> Tensor:
            asked.append(made.training_steps)
            return torch.zeros(len(maps), ToyGame.sizes.num_actions)

    made.follow_teacher(Counted())
    weights = []
    for _ in range(6):
        made.update(rollout_on(), 0.1)
        weights.append(made._kickstart.weight)
    assert weights == [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]
    assert asked == [0, 1, 2, 3]


def test_recorded_updates_refuse_a_teacher() -> None:
    made = pulled(1.0)
    made._graphs = Graphs(torch.device("cpu"), Unused())
    with pytest.raises(ConfigError, match=r"^learning.teacher.weight: .*compute.cuda_graphs=false"):
        made.follow_teacher(made.actor)
