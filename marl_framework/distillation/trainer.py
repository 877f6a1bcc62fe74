"""Trains a student: it flies the missions of all tasks, and learns what their teachers say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.optimisers import load_optimizer, load_scaler, make_adam
from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.threads import with_batch_threads
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.device import autocast, grad_scaler
from marl_framework.distillation.missions import Lesson
from marl_framework.distillation.samples import Samples, divergence
from marl_framework.distillation.tasks import TEACHERS
from marl_framework.observations.predictor import predictor_weights
from marl_framework.observations.symmetry import Symmetries
from marl_framework.training.rounds import RoundTrainer
from marl_framework.training.schedule import passes


class Distiller(RoundTrainer):
    """Makes one team of several teachers.

    In each round the student flies missions of every task. The task's teacher labels all states
    that it reaches, and makes a share of the moves in the first rounds (DAgger, Ross et al. 2011).
    Then the actor learns the labels of the latest rounds. The critic learns the returns of the
    round's missions, so that a training run can go on from here; the critic of an algorithm of the
    user's own stays untrained unless it has a `fit_critic`.

    Args:
        config: the student, and `distillation`.
        device: where everything lives.

    Attributes:
        algorithm: the student; `modules` are its networks.
        lessons: one for each task.

    Raises:
        ConfigError: tasks, teachers and student do not go together.
    """

    name = "distillation"
    mark = "replay"

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        self._settings = config.distillation
        names = sorted(self._settings.teachers)
        self.lessons = [Lesson(config, name, k, device) for k, name in enumerate(names)]
        self._symmetries = self._common_symmetries()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.environment.seed)
            self.algorithm = make_algorithm(self._largest(), device, self._symmetries)
        self.modules = self.algorithm.modules
        actor = self.modules["actor"]
        self._actor = with_batch_threads(actor, device)
        self._optimizer = make_adam(actor, self._settings.learning_rate, recorded=False)
        self._scaler = grad_scaler(device, self.algorithm.precision)
        self._weights_read = self._read()
        self._replay: list[Samples] = []  # of the rounds that the next one learns from, too

    def _largest(self) -> Config:
        """Return the configuration with the largest team of all tasks; give all its sizes.

        Only networks that see a plane for each UAV notice, and their weights suit any team.
        """
        team = max(lesson.task.n_agents for lesson in self.lessons)
        changes = {"experiment": {"missions": {"n_agents": team}}}
        largest = with_changes(self.config, changes, "the largest team of all tasks")
        for lesson in self.lessons:
            lesson.task.sizes = largest.network_sizes
        return largest

    def _common_symmetries(self) -> Symmetries | None:
        """Return the symmetries of all missions; None where they are off."""
        found = [lesson.task.symmetries for lesson in self.lessons]
        return min((each for each in found if each is not None), key=len, default=None)

    def round(self) -> dict[str, float]:
        """Fly missions of all tasks, then learn from the latest rounds.

        Returns:
            `NAME/TASK` for everything that `Lesson.fly` measures and, when it is due,
            `Lesson.validate`; the actor's mean `loss` over the updates, `critic_loss` of the
            critic, `skipped_updates`, whose numbers were not finite, and the `teacher_share`.
        """
        share = self._teacher_share()
        measured: dict[str, Tensor] = {}
        fresh, critic_losses = [], []
        for lesson in self.lessons:
            rollout, samples, found = lesson.fly(self.algorithm.act, share)
            fresh.append(samples)
            critic_losses += self._fit_critic(rollout)
            measured |= _of_task(lesson, found)
        known = [*self._replay, Samples.joined(fresh)]
        measured |= self._learn(Samples.joined(known))
        self._replay = known[max(len(known) + 1 - self._settings.replay_rounds, 0) :]
        if critic_losses:
            measured["critic_loss"] = torch.stack(critic_losses).mean()
        self.rounds += 1
        interval = self.config.evaluation.interval
        if interval and (passes(interval, self.rounds - 1, self.rounds) or self.is_over()):
            for lesson in self.lessons:
                measured |= _of_task(lesson, lesson.validate(self.algorithm.act))
        values = torch.stack([value.float() for value in measured.values()]).tolist()
        numbers = dict(zip(measured, values, strict=True))
        for lesson, samples in zip(self.lessons, fresh, strict=True):
            if numbers[f"left_out/{lesson.name}"] == len(samples):
                raise ConfigError(
                    f"{TEACHERS}.{lesson.name}: the teacher says nothing of any state; its "
                    "probabilities or scores are not finite, or 0 for all actions"
                )
        return {**numbers, "teacher_share": share}

    def _teacher_share(self) -> float:
        """Return the share of moves that the teachers make in the next round."""
        share, last = self._settings.teacher_share, self._settings.teacher_rounds
        return share * (1 - self.rounds / last) if self.rounds < last else 0.0

    def _fit_critic(self, rollout: Rollout) -> list[Tensor]:
        """Let the critic learn, where the algorithm can do that alone; return its loss then."""
        fit: Callable[..., Tensor] | None = getattr(self.algorithm, "fit_critic", None)
        return [] if fit is None else [fit(rollout, self._generator)]

    def _learn(self, samples: Samples) -> dict[str, Tensor]:
        """Make the updates of a round; return mean loss and skipped updates."""
        return self._make_updates(
            lambda _: self._loss(samples), self.config.learning.actor.gradient_norm
        )

    def _loss(self, samples: Samples) -> Tensor:
        """Return the loss of a batch of samples."""
        size = self._settings.batch_size
        index = torch.randint(len(samples), (size,), generator=self._generator, device=self.device)
        batch = samples.batch(index)
        if self._symmetries is not None:
            which = self._symmetries.draw(size, self._generator)
            batch = batch.turned(self._symmetries, which)
        with autocast(self.device, self.algorithm.precision):
            logits = self._actor(batch.observations)
        policy = policy_probabilities(logits, batch.masks, 0.0)
        return divergence(batch, policy, self._settings.loss)

    def describe(self, found: Mapping[str, float]) -> str:
        """Return the line of the log for what a round found."""
        tasks = (
            f"{lesson.name}: agreement {found[f'agreement/{lesson.name}']:.3f}, ROI entropy "
            f"{found[f'roi_entropy/{lesson.name}']:.4f}"
            for lesson in self.lessons
        )
        head = f"round {self.rounds}/{self._settings.rounds} | loss {found['loss']:.4f}"
        return " | ".join((head, *tasks))

    # Saving -------------------------------------------------------------------------------

    def mission_streams(self) -> list[torch.Generator]:
        """Return the generators of all missions."""
        return [lesson.task.generator for lesson in self.lessons]

    def learned_state(self) -> dict[str, Any]:
        """Return the student with its optimisers, the replay, and who taught it."""
        replay = [] if self.is_over() else self._replay
        return {
            **self.algorithm.state_dict(),
            "student_optimizer": self._optimizer.state_dict(),
            "student_scaler": self._scaler.state_dict(),
            "replay": [samples.tensors() for samples in replay],
        }

    def load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Load what `learned_state` returned."""
        self.algorithm.load_state_dict({**state, "training_step": 0})
        load_optimizer(self._optimizer, state["student_optimizer"])
        load_scaler(self._scaler, state["student_scaler"])
        self._replay = [Samples.of(tensors, self.device) for tensors in state["replay"]]

    def _read(self) -> dict[str, str]:
        """Return checksums of what teaches and predicts, see `check_weights`."""
        found: dict[str, str] = {}
        for lesson in self.lessons:
            found |= lesson.weights_read()
        if self.config.observation.sees_prediction:
            found |= predictor_weights(self.config.networks.predictor, "networks.predictor")
        return found


def _of_task(lesson: Lesson, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}/{lesson.name}": value for name, value in found.items()}
