"""Metrics of a rollout, and the summary of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from marl_framework.algorithms.ranks import means_over_ranks
from marl_framework.algorithms.rollout import Algorithm, Rollout
from marl_framework.config.mission import RewardConfig
from marl_framework.config.model import Config
from marl_framework.device import describe_device, synchronize
from marl_framework.kernels.versions import window_kernels
from marl_framework.runs.checkpoint import tensors_checksum
from marl_framework.stage_timer import StageTimer
from marl_framework.training.ranks import Ranks

_STEPS = "steps"  # that missions flew
_RESULTS = ("return", "absolute_return", "critic_loss", "actor_loss", "policy_entropy")


class Trained(Protocol):
    """The part of a trainer that a summary reads."""

    config: Config
    device: torch.device
    ranks: Ranks
    algorithm: Algorithm
    episodes: int

    def seconds(self) -> float:
        """Return the time trained [s]."""


def flown_metrics(
    rollout: Rollout, reward: RewardConfig, num_actions: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return scalars and histogram counts, on the rollout's device (see `training.logging`).

    The scalars are those of the rollouts of all ranks, which call this together; the counts are
    those of this one.

    Args:
        rollout: of a `MissionTask`, whose metrics are absolute and relative utility and the
            number of UAVs at each altitude.
        reward: scale and offset of the absolute return.
        num_actions: A.
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
        means = {"reward": rollout.rewards.sum(), _STEPS: flown.sum()}  # 0 where one is over
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
    """Return one line about what computes footprint windows on a GPU, and what slows it down."""
    kernels, lack = window_kernels(config.compute, device)
    line = f"window kernels: {kernels}"
    if lack is None:
        return line
    line += f", which are slower, because {lack.reason}"
    if config.compute.deterministic:
        line += "; compute.deterministic makes them sort all windows, which is slower still"
    return f"{line}; fix: {lack.fix}" if lack.fix else line


def weights_checksum(modules: Mapping[str, nn.Module]) -> str:
    """Return the SHA-256 of all weights; equal runs have equal ones."""
    return tensors_checksum(*(module.state_dict() for module in modules.values()))


def results(
    trainer: Trained, last: Mapping[str, float], best: Mapping[str, float], *, finished: bool
) -> dict[str, Any]:
    """Return the results of a training run, which depend on configuration and seed alone.

    Args:
        trainer: with its networks.
        last: metrics last written.
        best: of the best validation.
        finished: whether nothing is left to train.
    """
    return {
        "training_steps": trainer.algorithm.training_steps,
        "episodes": trainer.episodes,
        "transitions": _transitions(trainer),
        "finished": finished,
        "last": {name: last[name] for name in _RESULTS if name in last},
        "best": dict(best),
        "weights_sha256": weights_checksum(trainer.algorithm.modules),
    }


def timing(trainer: Trained, timer: StageTimer) -> dict[str, Any]:
    """Return times and speed of a training run; waits for the device.

    Args:
        trainer: the trainer.
        timer: shares of the stages.
    """
    synchronize(trainer.device)
    seconds = trainer.seconds()
    return {
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "transitions_per_second": _transitions(trainer) / seconds,
        "stage_shares": timer.shares(total=True),
    }


def describe_machine(trainer: Trained, hardware: Mapping[str, Any]) -> dict[str, Any]:
    """Return device, precision and software of a training run, and what the monitor measured."""
    return {
        "device": describe_device(trainer.device),
        "ranks": trainer.ranks.count,
        "precision": str(trainer.algorithm.precision).removeprefix("torch."),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "hardware": dict(hardware),
    }


def _transitions(trainer: Trained) -> int:
    return round(trainer.episodes * trainer.config.schedule.transitions_per_mission)
