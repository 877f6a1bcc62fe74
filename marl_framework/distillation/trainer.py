"""Train a student on the missions of all tasks, labelled by the tasks' teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.optimisers import load_optimizer, load_scaler, make_adam
from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.derived import passes
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.device import autocast, grad_scaler
from marl_framework.distillation.lesson import Samples, divergence, make_lessons
from marl_framework.distillation.tasks import TEACHERS
from marl_framework.observations.prediction import predictor_weights
from marl_framework.training.rounds import RoundTrainer


class Distiller(RoundTrainer):
    """Trains one team from several teachers.

    In each round the student flies missions of every task. The task's teacher labels all visited
    states, and makes a share of the moves in the first rounds (DAgger, Ross et al. 2011). Then the
    actor learns the labels of the latest rounds. The critic learns the returns of the round's
    missions, so that a training can start from the student; the critic of a custom algorithm stays
    untrained unless the algorithm has a method `fit_critic`.

    `algorithm` is the student, `modules` are the student's networks, `lessons` has one entry per
    task and area. Raises ConfigError if tasks, teachers and student do not fit together.
    """

    name = "distillation"
    mark = "replay"

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        self._settings = config.distillation
        self.lessons = make_lessons(config, device)
        self.streams = [*(lesson.generator for lesson in self.lessons), self._generator]
        # Networks that see a plane for each UAV are built for the largest team.
        team = max(lesson.n_agents for lesson in self.lessons)
        changes = {"experiment": {"missions": {"n_agents": team}}}
        largest = with_changes(config, changes, "the largest team of all tasks")
        for lesson in self.lessons:
            lesson.sizes = largest.network_sizes
        symmetries = [lesson.symmetries for lesson in self.lessons if lesson.symmetries is not None]
        self._symmetries = min(symmetries, key=len, default=None)  # symmetries of every task
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.environment.seed)
            self.algorithm = make_algorithm(largest, device, self._symmetries)
        self.modules = self.algorithm.modules
        actor = self.modules["actor"]
        self._optimizer = make_adam(actor, self._settings.learning_rate, recorded=False)
        self._scaler = grad_scaler(device, self.algorithm.precision)
        self._weights_read: dict[str, str] = {}
        for lesson in self.lessons:
            self._weights_read |= lesson.weights_read()
        if config.observation.sees_prediction:
            self._weights_read |= predictor_weights(config.networks.predictor, "networks.predictor")
        self._replay: list[Samples] = []  # one entry for each of the latest rounds

    def round(self) -> dict[str, float]:
        """Fly missions of all tasks, then learn from the latest rounds.

        Returns `NAME/TASK` for all metrics of `Lesson.fly` and, when a validation is due, of
        `Lesson.validate`; the actor's mean `loss` over the updates, `critic_loss`, the number of
        `skipped_updates` that were not finite (a critic's pass over a lesson counts as one), and
        the `teacher_share`.
        """
        share = self._teacher_share()
        fit_critic: Callable[..., Tensor] | None = getattr(self.algorithm, "fit_critic", None)
        metrics: dict[str, Tensor] = {}
        fresh, critic_losses = [], []
        for lesson in self.lessons:
            rollout, new, task_metrics = lesson.fly(self.algorithm.act, share)
            if not new.weights.any():
                raise ConfigError(
                    f"{TEACHERS}.{lesson.name}: the teacher labels no state, because its "
                    "probabilities or scores are 0 or not finite; correct or replace the teacher"
                )
            fresh.append(new)
            if fit_critic is not None:
                critic_losses.append(fit_critic(rollout, self._generator))
            metrics |= {f"{name}/{lesson.name}": value for name, value in task_metrics.items()}
        replay = [*self._replay, Samples.join(fresh)]
        samples, norm = Samples.join(replay), self.config.learning.actor.gradient_norm
        metrics |= self._make_updates(lambda _: self._loss(samples), norm)
        self._replay = replay[max(len(replay) + 1 - self._settings.replay_rounds, 0) :]
        if critic_losses:
            losses = torch.stack(critic_losses)
            metrics["critic_loss"] = losses.mean()
            metrics["skipped_updates"] = metrics["skipped_updates"] + (~losses.isfinite()).sum()
        self.rounds += 1
        interval = self.config.evaluation.interval
        if interval and (passes(interval, self.rounds - 1, self.rounds) or self.is_over()):
            for lesson in self.lessons:
                task_metrics = lesson.validate(self.algorithm.act)
                metrics |= {f"{name}/{lesson.name}": value for name, value in task_metrics.items()}
        values = torch.stack([value.float() for value in metrics.values()]).tolist()
        return {**dict(zip(metrics, values, strict=True)), "teacher_share": share}

    def _teacher_share(self) -> float:
        share, last = self._settings.teacher_share, self._settings.teacher_rounds
        return share * (1 - self.rounds / last) if self.rounds < last else 0.0

    def _loss(self, samples: Samples) -> Tensor:
        size, total = self._settings.batch_size, len(samples.weights)
        index = torch.randint(total, (size,), generator=self._generator, device=self.device)
        batch = samples.batch(index)
        if self._symmetries is not None:
            batch = batch.turn(self._symmetries, self._symmetries.draw(size, self._generator))
        with autocast(self.device, self.algorithm.precision):
            logits = self.modules["actor"](batch.observations)
        policy = policy_probabilities(logits, batch.masks, 0.0)
        return divergence(batch, policy)

    def describe(self, results: Mapping[str, float]) -> str:
        """Format the metrics of a round as a line to print."""
        tasks = (
            f"{lesson.name}: agreement {results[f'agreement/{lesson.name}']:.3f}, ROI entropy "
            f"{results[f'roi_entropy/{lesson.name}']:.4f}"
            for lesson in self.lessons
        )
        head = f"round {self.rounds}/{self._settings.rounds} | loss {results['loss']:.4f}"
        return " | ".join((head, *tasks))

    def own_state(self) -> dict[str, Any]:
        """Return the state of student and optimisers, the latest samples and random streams."""
        replay = [] if self.is_over() else self._replay
        return {
            **super().own_state(),
            **self.algorithm.state_dict(),
            "student_optimizer": self._optimizer.state_dict(),
            "student_scaler": self._scaler.state_dict(),
            "replay": [samples._asdict() for samples in replay],
        }

    def load_own_state(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        """Load what `own_state` returned."""
        learned = {name: value for name, value in state.items() if name != "replay"}
        self.algorithm.load_state_dict({**learned, "training_step": 0})
        load_optimizer(self._optimizer, state["student_optimizer"])
        load_scaler(self._scaler, state["student_scaler"])
        self._replay = [
            Samples(**{name: tensor.to(self.device) for name, tensor in samples.items()})
            for samples in state["replay"]
        ]
        super().load_own_state(state, report)
