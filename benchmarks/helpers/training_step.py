"""Training steps without logs, validation and checkpoints."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer


def training_step(trainer: Trainer, timer: StageTimer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Make the next `update_interval` training steps; return the result of `Trainer.account`."""
    plan = trainer.plan()
    with timer("rollout"):
        collector = trainer.collectors[trainer.draw_area(plan.first)]
        rollout = collector.collect(trainer.algorithm.act, plan.epsilon, plan.rounds)
    with timer("update"):
        learned = trainer.algorithm.update(
            rollout, plan.epsilon, trainer.task.generator, plan.steps, plan.rate
        )
    return trainer.account(plan, rollout, learned, timer)
