"""Metrics of a rollout, and entries of the summary of a training run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from marl_framework.algorithms.ranks import means_over_ranks
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.mission import RewardConfig
from marl_framework.config.model import Config
from marl_framework.kernels.versions import window_kernels
from marl_framework.runs.checkpoint import tensors_checksum

_STEPS = "steps"  # number of steps flown, over all missions


def flown_metrics(
    rollout: Rollout, reward: RewardConfig, num_actions: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute scalars and histogram counts, on the rollout's device (see `training.logging`).

    All ranks call this function together. Scalars cover the rollouts of all ranks, counts only the
    rollout of this rank.

    The metrics of a rollout of `MissionTask` are absolute utility, relative utility and the number
    of UAVs at each altitude. `reward` has scale and offset of the absolute return.
    """
    absolute, relative = rollout.metrics[..., 0], rollout.metrics[..., 1]
    scaled = reward.absolute_scale * absolute + reward.absolute_offset
    means = {"reward": rollout.rewards.mean()}
    actions = torch.arange(num_actions, device=rollout.actions.device)
    chosen = rollout.actions.unsqueeze(-1) == actions
    flown = None
    if rollout.active is not None:
        flown = rollout.active.any(-1)
        scaled = scaled * flown
        means = {"reward": rollout.rewards.sum(), _STEPS: flown.sum()}  # 0 after a mission's end
        chosen = chosen & rollout.active.unsqueeze(-1)
    means |= {
        "return": rollout.rewards.sum(0).mean(),
        "absolute_return": scaled.sum(0).mean(),
        "relative_return": relative.sum(0).mean(),
    }
    metrics = means_over_ranks(means, {"reward_std": rollout.rewards}, flown)
    if _STEPS in metrics:
        metrics["reward"] = metrics["reward"] / metrics.pop(_STEPS)
    counts = {
        "actions": chosen.sum((0, 1, 2)),
        "altitudes": rollout.metrics[..., 2:].sum((0, 1)),
    }
    return metrics, counts


def describe_windows(config: Config, device: torch.device) -> str:
    """Name the window kernels, and say why a GPU uses no faster ones, in one line."""
    line, lack = window_kernels(config.compute, device)
    if lack is None:
        return line
    line += f", which are slower, because {lack.reason}"
    if config.compute.deterministic:
        line += "; compute.deterministic adds a sort of all windows, which is even slower"
    return f"{line}; fix: {lack.fix}" if lack.fix else line


def weights_checksum(modules: Mapping[str, nn.Module]) -> str:
    """Return the SHA-256 digest of all weights, which is the same for identical runs."""
    return tensors_checksum(*(module.state_dict() for module in modules.values()))
