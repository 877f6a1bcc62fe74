"""Something that happens at the start of a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer


def at_step(
    number: int, happen: Callable[[Trainer], object]
) -> Callable[[Trainer, StageTimer], Any]:
    """Return a `Trainer.make_steps` that calls `happen` first in training step `number`."""
    make_steps = Trainer.make_steps

    def steps(trainer: Trainer, timer: StageTimer) -> Any:
        if trainer.steps == number - 1:
            happen(trainer)
        return make_steps(trainer, timer)

    return steps
