"""MAPPO against TorchRL's PPO with a central critic, on the same transitions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.mappo import MAPPO
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from tests.small import small_config

GAMMA, LAMBDA = 0.9, 0.8
HUBER = {"smooth_l1": 1.0, "l2": 0.0}
"""Our key for what TorchRL calls the critic's loss."""


@pytest.fixture
def team(request: pytest.FixtureRequest) -> MAPPO:
    learning = {"gamma": GAMMA, "lambda": LAMBDA, "clip_ratio": 0.2, "value_normalization": False}
    wide = {"actor": {"gradient_norm": 1e9}, "critic": {"gradient_norm": 1e9}}
    once = {"data_passes": 1, "batch_number": 1, "entropy_coefficient": 0.02}
    config = small_config(
        experiment={"algorithm": "mappo", "missions": {"n_agents": 3}},
        learning={**learning, **wide, **once, **request.param},
    )
    torch.manual_seed(0)
    return MAPPO(config, config.network_sizes, "cpu")


@pytest.fixture
def rollout(team: MAPPO) -> Rollout:
    """Missions flown by the team."""
    config = small_config(experiment={"missions": {"n_agents": 3}})
    task = MissionTask(MissionEnvironment(config, 4, "cpu"))
    return RolloutCollector(task, len(task.metric_names)).collect(team.act, 0.0)


def torchrls(team: MAPPO, kind: str, clip: float) -> ClipPPOLoss:
    """TorchRL's loss with copies of the team's networks."""
    actor = ProbabilisticActor(
        TensorDictModule(deepcopy(team.actor), ["observation"], ["logits"]),
        in_keys={"logits": "logits", "mask": "mask"},
        out_keys=["action"],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(deepcopy(team.critic), in_keys=["maps"])
    return ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=0.02, loss_critic_type=kind,
        clip_value=clip or False,
    )  # fmt: skip


def as_tensordict(batch: Transitions) -> TensorDict:
    """Our transitions as TorchRL names them."""
    chosen = batch.old_probabilities.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    entries: dict[str, Any] = {
        "observation": batch.observations,
        "maps": batch.critic_inputs,
        "mask": batch.masks,
        "action": batch.actions,
        "action_log_prob": chosen.log(),
        "state_value": batch.old_values.unsqueeze(1),
        "value_target": batch.targets.unsqueeze(1),
        "advantage": batch.advantages.unsqueeze(1),
    }
    return TensorDict(entries, [len(batch)])


pytestmark = pytest.mark.filterwarnings("ignore:size_average and reduce args:UserWarning")

CASES = [("l2", 0.0, False), ("l2", 0.1, True), ("smooth_l1", 0.1, False)]


@pytest.mark.parametrize(
    ("team", "case"),
    [
        (
            {"huber_delta": HUBER[kind], "value_clip": clip, "normalize_advantages": normalize},
            (kind, clip, normalize),
        )
        for kind, clip, normalize in CASES
    ],
    indirect=["team"],
)
def test_losses_and_gradients_are_torchrls(
    team: MAPPO,
    rollout: Rollout,
    case: tuple[str, float, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flat = team.transitions(rollout)
    monkeypatch.setattr(team, "transitions", lambda _: flat)
    # As after other updates: policy and values differ from those that flew.
    with torch.no_grad():
        team.actor.head.bias.add_(torch.linspace(-0.4, 0.4, 6))
        team.critic.network.head.bias.add_(0.15)
    kind, clip, normalize = case
    loss, data = torchrls(team, kind, clip), as_tensordict(flat)
    if normalize:  # TorchRL would divide by the deviation with n - 1, the paper's code has n
        found = data["advantage"]
        data["advantage"] = (found - found.mean()) / found.std(correction=0)
    losses = loss(data)
    sum(losses[f"loss_{part}"] for part in ("objective", "entropy", "critic")).backward()
    stats = team.update(rollout, 0.0)
    policy = losses["loss_objective"] + losses["loss_entropy"]
    torch.testing.assert_close(stats["actor_loss"], policy.detach())
    torch.testing.assert_close(stats["critic_loss"], losses["loss_critic"].detach())
    assert losses["clip_fraction"] > 0.05
    for name in ("actor", "critic"):
        params = getattr(loss, f"{name}_network_params").values(True, True)
        norm = torch.stack([p.grad.norm() for p in params if p.grad is not None]).norm()
        torch.testing.assert_close(stats[f"{name}_gradient_norm"], norm, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("team", [{}], indirect=True)
def test_advantages_and_targets_are_torchrls(team: MAPPO, rollout: Rollout) -> None:
    values = team.evaluate(rollout).view(rollout.actions.shape)

    def by_mission(numbers: Tensor) -> Tensor:  # [T, E, N] -> [E, N, T, 1]
        return numbers.permute(1, 2, 0).unsqueeze(-1)

    done = torch.zeros(*by_mission(values).shape, dtype=torch.bool)
    done[..., -1, :] = True
    later = torch.cat((values[1:], torch.full_like(values[:1], 7.0)))  # beyond the end: not seen
    rewards = rollout.rewards.unsqueeze(-1).expand_as(values)
    advantages, targets = generalized_advantage_estimate(
        GAMMA, LAMBDA, *(by_mission(x) for x in (values, later, rewards)), done, done
    )
    flat = team.transitions(rollout)
    for ours, theirs in ((flat.advantages, advantages), (flat.targets, targets)):
        torch.testing.assert_close(ours, theirs.squeeze(-1).permute(2, 0, 1).flatten())
