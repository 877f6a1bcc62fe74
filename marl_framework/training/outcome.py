"""What a training step flew and what a training came to, as numbers."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from marl_framework.coma.rollout import Rollout
from marl_framework.coma_wrapper import COMAWrapper
from marl_framework.config import RewardConfig


def flown_metrics(
    rollout: Rollout, reward: RewardConfig, num_actions: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return scalars and histogram counts of a rollout, on its device (see `training.logger`).

    Args:
        rollout: of a `MissionTask`, whose metrics are absolute and relative utility and the
            number of UAVs at each altitude.
        reward: scale and offset of the absolute return.
        num_actions: A.
    """
    absolute, relative = rollout.metrics[..., 0], rollout.metrics[..., 1]
    metrics = {
        "return": rollout.rewards.sum(0).mean(),
        "absolute_return": (reward.absolute_scale * absolute + reward.absolute_offset)
        .sum(0)
        .mean(),
        "relative_return": relative.sum(0).mean(),
        "reward": rollout.rewards.mean(),
        "reward_std": rollout.rewards.std(),
    }
    actions = torch.arange(num_actions, device=rollout.actions.device)
    counts = {
        "actions": (rollout.actions.unsqueeze(-1) == actions).sum((0, 1, 2)),
        "altitudes": rollout.metrics[..., 2:].sum((0, 1)),
    }
    return metrics, counts


def weights_checksum(coma: COMAWrapper) -> str:
    """Return a fingerprint of all weights: equal runs have equal ones."""
    digest = hashlib.sha256()
    for network in (coma.actor, coma.critic, coma.target_critic):
        for tensor in network.state_dict().values():
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
