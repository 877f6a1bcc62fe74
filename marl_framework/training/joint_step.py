"""The training steps of several trainers at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

import torch
from torch import Tensor

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.algorithms.stacked import StackedLearners, stacks
from marl_framework.mission.joint import JointEnvironment
from marl_framework.observations.task import MissionTask
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer, TrainingStep


class JointStep:
    """Makes training steps of trainers that differ in seed and learning rates alone.

    Their missions are one batch. With `compute.stack_networks` their networks are stacked, too;
    else they act and learn one after the other, and on a CPU every bit is what it would be alone.

    Args:
        trainers: at the same training step.

    Attributes:
        description: how the steps are made.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        first = trainers[0]
        self._trainers = trainers
        self._collector = JointCollector(
            [trainer.task for trainer in trainers], first.algorithm.precision
        )
        self._learners: StackedLearners | None = None
        stacked, reason = stacks(first.config, first.device)
        if stacked:
            algorithms = [cast(ActorCritic, trainer.algorithm) for trainer in trainers]
            self._learners = StackedLearners(algorithms)
        way = "stacked" if stacked else "one after the other"
        self.description = f"missions in one batch, networks {way}"
        if reason:
            self.description += f", because of {reason}"

    def __call__(self, timers: Sequence[StageTimer]) -> list[TrainingStep]:
        """Make the next training steps; return what `Trainer.training_step` does, of each.

        Args:
            timers: of the trainers; each notes the time that all of them take.
        """
        trainers, learners = self._trainers, self._learners
        plan = trainers[0].plan()
        generators = [trainer.task.generator for trainer in trainers]
        with _all(timers, "rollout"):
            act = self._act if learners is None else learners.act
            flown = self._collector.collect(act, plan.epsilon, plan.rounds)
            rollouts = self._collector.parts(flown, maps=learners is None)
        with _all(timers, "update"):
            if learners is None:
                learned = [
                    trainer.algorithm.update(
                        rollout, plan.epsilon, generator, plan.steps, plan.rate
                    )
                    for trainer, rollout, generator in zip(
                        trainers, rollouts, generators, strict=True
                    )
                ]
            else:
                learned = learners.update(
                    flown, plan.epsilon, generators, plan.steps, plan.rate, plan.rounds
                )
        columns = zip(trainers, rollouts, learned, timers, strict=True)
        return [
            trainer.note(plan, rollout, found, timer) for trainer, rollout, found, timer in columns
        ]

    def _act(self, observations: Tensor) -> Tensor:
        """Return policy logits [L·E, N, A], each by the actor whose mission it is."""
        parts = observations.chunk(len(self._trainers))
        return torch.cat(
            [
                trainer.algorithm.act(part)
                for trainer, part in zip(self._trainers, parts, strict=True)
            ]
        )


def _all(timers: Sequence[StageTimer], stage: str) -> ExitStack:
    """Return a context in which all timers note a stage."""
    stack = ExitStack()
    for timer in timers:
        stack.enter_context(timer(stage))
    return stack


class JointCollector(RolloutCollector):
    """Flies the missions of L tasks at once, each as it would be flown alone.

    Args:
        tasks: alike but for their generators, E missions each.
        precision: see `RolloutCollector`.
    """

    def __init__(self, tasks: Sequence[MissionTask], precision: torch.dtype) -> None:
        joint = MissionTask(JointEnvironment([task.environment for task in tasks]))
        super().__init__(joint, len(joint.metric_names), precision=precision)
        self._tasks = tasks

    def draw_uniform(self, shape: torch.Size) -> Tensor:
        """See `RolloutCollector.draw_uniform`."""
        return torch.cat(
            [
                torch.rand(
                    (task.num_envs, *shape[1:]), generator=task.generator, device=task.device
                )
                for task in self._tasks
            ]
        )

    def parts(self, rollout: Rollout, maps: bool) -> list[Rollout]:
        """Return the rollout of each task, [T, R·E, …], from that of all, [T, R·L·E, …].

        Args:
            rollout: of all.
            maps: whether theirs are needed, which copies them for several rounds; else they have
                those of no mission.
        """
        rounds = (-1, len(self._tasks), self._tasks[0].num_envs)

        def part(name: str, field: Tensor, number: int) -> Tensor:
            is_map = name in ("observations", "critic_maps")
            if is_map and not maps:
                return field[:, :0]
            mine = field.unflatten(1, rounds)[:, :, number].flatten(1, 2)
            # Sums depend on the order in memory; maps are large, and an update copies them anyway.
            return mine if is_map else mine.contiguous()

        fields = rollout.tensors()
        return [
            Rollout(**{name: part(name, field, number) for name, field in fields.items()})
            for number in range(len(self._tasks))
        ]
