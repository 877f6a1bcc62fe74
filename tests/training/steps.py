"""Lets something happen in the middle of a training."""

from __future__ import annotations

from collections.abc import Callable

from marl_framework.training.trainer import Plan, Trainer


def at_step(number: int, happen: Callable[[Trainer], object]) -> Callable[[Trainer], Plan]:
    """Return a `Trainer.plan` that calls `happen` at the start of training step `number`."""
    plan = Trainer.plan

    def planned(trainer: Trainer) -> Plan:
        if trainer.steps == number - 1:
            happen(trainer)
        return plan(trainer)

    return planned
