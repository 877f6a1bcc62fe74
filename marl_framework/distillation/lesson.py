"""Tasks of a distillation: missions that a student flies and a teacher labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor

from marl_framework.algorithms.policy import kl_divergence, policy_probabilities
from marl_framework.algorithms.rollout import Rollout, RolloutCollector, draw_one_by_one
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.distillation.tasks import TASKS, TEACHERS, with_mission
from marl_framework.distillation.teachers import find_team, labels, planner_teacher, trained_teacher
from marl_framework.evaluation.flight import validate
from marl_framework.evaluation.metrics import roi_entropy
from marl_framework.mission.accuracy import f1
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.files import files_read
from marl_framework.observations.builder import make_builder
from marl_framework.observations.symmetry import Symmetries
from marl_framework.observations.task import MissionTask
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.search.planner import weights_read
from marl_framework.planners.team import check_lattice, team_weights


class Samples(NamedTuple):
    """B labelled samples, each of one UAV before a move."""

    observations: Tensor
    """Observations of the student, [B, C_a, X, Y] float16."""
    masks: Tensor
    """Allowed actions of the student, [B, A] bool."""
    labels: Tensor
    """Policy of the teacher over the allowed actions, [B, A] float32."""
    weights: Tensor
    """Weights of the samples: 0 if the teacher rates no allowed action, else 1, [B] float32."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate samples."""
        return cls(*map(torch.cat, zip(*parts, strict=True)))

    def batch(self, index: Tensor) -> Self:
        """Return the samples at the indices [b], with observations in float32."""
        observations, *others = (field[index] for field in self)
        return type(self)(observations.float(), *others)

    def turn(self, symmetries: Symmetries, which: Tensor) -> Self:
        """Return the samples, including labels, transformed by symmetry `which` [B]."""
        return self._replace(
            observations=symmetries.maps(self.observations, which),
            masks=symmetries.policies(self.masks, which),
            labels=symmetries.policies(self.labels, which),
        )


def divergence(batch: Samples, policy: Tensor) -> Tensor:
    """Compute the mean KL(teacher ‖ student) over labelled samples [nat].

    `policy` is the student's policy, [B, A].
    """
    return weighted_mean(kl_divergence(batch.labels, policy), batch.weights)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of values [B] with weights [B]; 0 if all weights are 0."""
    return (values * weights).sum() / weights.sum().clamp(min=1)


class Lesson(MissionTask):
    """A task of a distillation in one area: missions in which a teacher labels all states.

    The teacher also makes a share of the moves. In such a move all UAVs of a mission follow the
    teacher, because it chooses their actions jointly. Each `number` draws different missions.

    `area` is the index of the area, if the task has several; they share the missions. `sizes` are
    the sizes of the student's networks, which may be for a larger team. Raises ConfigError if
    mission or teacher do not fit the student.
    """

    def __init__(
        self, config: Config, name: str, number: int, device: torch.device, area: int = 0
    ) -> None:
        self._settings = settings = config.distillation
        self.name = self._task = name
        teacher = settings.teachers[name]
        self._team = find_team(teacher, config.logging.directory, name)
        trained = None if self._team is None else self._team.config()
        changes = settings.tasks.get(name, {})
        task = with_changes(config, changes, f"{TASKS}.{name}")
        mission = _configure_mission(config, name, task, trained)
        areas = mission.areas
        self.number_of_areas, self._config = len(areas), areas[area]
        if len(areas) > 1:
            sizes = [f"{each.environment.x_dim:g}x{each.environment.y_dim:g}" for each in areas]
            repeated = f"-{area + 1}" if sizes.count(sizes[area]) > 1 else ""
            self.name = f"{name}-{sizes[area]}{repeated}"
        check_lattice(config, self._config, f"task {name}")
        if trained is not None:
            check_lattice(self._config, trained, f"teacher of {name}")
            if trained.observation.sees_uncertainty:  # the missions must track uncertainty
                changes = {"observation": {"uncertainty": True}}
                mission = with_changes(mission, changes, f"task {name}")
        missions = -(-task.distillation.missions // len(areas))
        environment = MissionEnvironment(
            mission.areas[area], missions, device, "training", rank=number
        )
        super().__init__(environment)
        self.builder = make_builder(environment, self._config)
        self.sizes = self._config.network_sizes
        if self._team is None:
            planner = make_planner(teacher, environment)
            self._teacher = planner_teacher(planner, settings.temperature)
        else:
            self._teacher = trained_teacher(environment, self._team)
        self._share = 0.0
        self._labels: list[tuple[Tensor, Tensor]] = []
        self._draw = self.draw_actions or partial(draw_one_by_one, self)
        self.draw_actions = self._draw_and_label
        self._collector = RolloutCollector(self, len(self.metric_names))
        if config.evaluation.interval:
            missions = -(-config.evaluation.missions // len(areas))
            self._validation = MissionEnvironment(self._config, missions, device, "validation")

    def weights_read(self) -> dict[str, str]:
        """Return checksums of all files and weights read, except those of custom planners."""
        files = files_read(self._config)
        if self._team is not None:
            return files | team_weights(self._team, f"{TEACHERS}.{self._task}")
        if self._settings.teachers[self._task] == "search":
            return files | weights_read(self._config.experiment.baselines.search)
        return files

    def reset(self) -> None:
        """Start E new missions in the same buffers, and clear the labels."""
        super().reset()
        self._labels = []

    def observe(self, out: Tensor | None = None) -> Tensor:
        """Return observations with a plane for each UAV of the team in `sizes`; see `MissionTask`.

        Planes of missing UAVs are 0, as for UAVs that are not heard.
        """
        channels = super().observe()
        if missing := self.sizes.actor_channels - channels.shape[2]:
            planes, maps = channels[:, :, : self.n_agents], channels[:, :, self.n_agents :]
            zeros = torch.zeros_like(channels[:, :, :1]).expand(-1, -1, missing, -1, -1)
            channels = torch.cat((planes, zeros, maps), dim=2)
        return channels if out is None else out.copy_(channels)

    def _draw_and_label(
        self,
        logits: Tensor,
        uniform: Tensor,
        epsilon: float | Tensor,
        actions: Tensor,
        masks: Tensor,
        probabilities: Tensor,
    ) -> None:
        """Draw actions, see `TeamTask.draw_actions`, and store the teacher's labels."""
        self._draw(logits, uniform, epsilon, actions, masks, probabilities)
        advice = self._teacher(self.state, self.generator)
        if self._share > 0:
            draws = torch.rand(self.num_envs, generator=self.generator, device=self.device)
            by_teacher = (draws < self._share).unsqueeze(1)
            actions.copy_(torch.where(by_teacher, advice.actions, actions))
            masks.copy_(torch.where(by_teacher.unsqueeze(2), advice.masks, masks))
            probabilities.copy_(policy_probabilities(logits, masks, epsilon))
        self._labels.append(labels(advice.logits, masks))

    def fly(
        self, act: Callable[[Tensor], Tensor], share: float
    ) -> tuple[Rollout, Samples, dict[str, Tensor]]:
        """Fly missions with the student; return rollout, samples and metrics.

        `act` maps observations [E, N, C_a, X, Y] to logits [E, N, A]. The teacher makes a `share`
        (0 to 1) of the moves. Metrics are scalars on the device: `loss`, the divergence before the
        updates; `agreement`, the share of labelled states in which student and teacher have the
        same most probable action; `left_out`, the number of states without a label; `return`,
        `roi_entropy` and `f1`, means over the missions.
        """
        self._share = share
        rollout = self._collector.collect(act, 0.0)
        policies, rated = (torch.stack(p).flatten(0, 2) for p in zip(*self._labels, strict=True))
        flown = slice(None) if rollout.active is None else rollout.active.flatten().nonzero()[:, 0]
        samples = Samples(
            observations=rollout.observations.flatten(0, 2)[flown].half(),
            masks=rollout.masks.flatten(0, 2)[flown],
            labels=policies[flown],
            weights=rated[flown].float(),
        )
        policy = rollout.probabilities.flatten(0, 2)[flown]
        same = (policy.argmax(-1) == samples.labels.argmax(-1)).float()
        maps = self.state.global_belief, self.state.truth
        metrics = {
            "loss": divergence(samples, policy),
            "agreement": weighted_mean(same, samples.weights),
            "left_out": (1 - samples.weights).sum(),
            "return": rollout.rewards.sum(0).mean(),
            "roi_entropy": roi_entropy(*maps).mean(),
            "f1": f1(*maps).mean(),
        }
        return rollout, samples, metrics

    def validate(self, act: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Fly the task's validation missions greedily with the student; return mean metrics."""
        planner = LearnedPlanner(act, self.builder, self.environment.lattice)
        metrics = validate(self._validation, planner)
        names = {"roi_entropy": "entropy", "f1": "f1", "return": "return"}
        return {f"validation_{name}": metrics[key].mean() for key, name in names.items()}


def make_lessons(config: Config, device: torch.device) -> list[Lesson]:
    """Return the lessons of all tasks, sorted by name, and of their areas, in order."""
    lessons: list[Lesson] = []
    for name in sorted(config.distillation.teachers):
        lessons.append(Lesson(config, name, len(lessons), device))
        for area in range(1, lessons[-1].number_of_areas):
            lessons.append(Lesson(config, name, len(lessons), device, area))
    return lessons


def _configure_mission(config: Config, name: str, task: Config, trained: Config | None) -> Config:
    """Return the student's configuration with the mission of the task, or else of the teacher."""
    tasks = config.distillation.tasks
    if name in tasks:
        return with_mission(config, task, name)
    if trained is not None:
        return with_mission(config, trained, name)
    if tasks:
        names = ", ".join(tasks)
        raise ConfigError(
            f"{TASKS}: {name}, whose teacher is a planner, is missing; choose from {names}"
        )
    return config
