"""Missions that a student flies while their teacher looks on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.rollout import Rollout, RolloutCollector, draw_one_by_one
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.distillation.samples import Samples, divergence, weighted_mean
from marl_framework.distillation.tasks import TASKS, TEACHERS, task_config, with_mission
from marl_framework.distillation.teachers import Teacher, find_team, labels, make_teacher
from marl_framework.evaluation.flight import validate
from marl_framework.evaluation.metrics import roi_entropy
from marl_framework.mission.accuracy import f1
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.files import files_read
from marl_framework.observations.kernels import make_builder
from marl_framework.observations.task import MissionTask
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.search.planner import weights_read
from marl_framework.planners.team import check_lattice, mission_config, team_weights


class TaughtTask(MissionTask):
    """Missions whose states a teacher labels; it also makes some of the moves.

    Where it moves, it moves all UAVs of a mission together, so that its choices fit each other.

    Args:
        environment: the missions; keeps up to date whatever student or teacher sees.
        config: the same missions as the student sees them.
        teacher: has an opinion of every state.

    Attributes:
        share: of the moves that the teacher makes, between 0 and 1.
        sizes: of the student's networks; may be those of a larger team.
    """

    def __init__(self, environment: MissionEnvironment, config: Config, teacher: Teacher) -> None:
        super().__init__(environment)
        self.builder = make_builder(environment, config)
        self.sizes = config.network_sizes
        self.share = 0.0
        self._teacher = teacher
        self._labels: list[tuple[Tensor, Tensor]] = []
        self._draw = self.draw_actions or partial(draw_one_by_one, self)
        self.draw_actions = self._draw_and_ask

    def reset(self) -> None:
        """Start E new missions, in the same buffers, without labels."""
        super().reset()
        self._labels = []

    def observe(self, out: Tensor | None = None) -> Tensor:
        """Return observations as `MissionTask.observe`, planes for as many UAVs as `sizes` has.

        Where networks see a plane for each UAV, missions of smaller teams have planes of 0 behind
        theirs, as for UAVs that are not heard. So states of all tasks go into one batch.
        """
        seen = super().observe()
        missing = self.sizes.actor_channels - seen.shape[2]
        if missing:
            planes, maps = seen[:, :, : self.n_agents], seen[:, :, self.n_agents :]
            nobody = torch.zeros_like(seen[:, :, :1]).expand(-1, -1, missing, -1, -1)
            seen = torch.cat((planes, nobody, maps), dim=2)
        return seen if out is None else out.copy_(seen)

    def _draw_and_ask(
        self,
        logits: Tensor,
        uniform: Tensor,
        epsilon: float | Tensor,
        actions: Tensor,
        masks: Tensor,
        probabilities: Tensor,
    ) -> None:
        """Let the student choose, see `TeamTask.draw_actions`; note what its teacher says."""
        self._draw(logits, uniform, epsilon, actions, masks, probabilities)
        opinion = self._teacher.judge(self.state, self.generator)
        if self.share > 0:
            drawn = torch.rand(self.num_envs, generator=self.generator, device=self.device)
            follows = (drawn < self.share).unsqueeze(1)
            actions.copy_(torch.where(follows, opinion.actions, actions))
            masks.copy_(torch.where(follows.unsqueeze(2), opinion.masks, masks))
            probabilities.copy_(policy_probabilities(logits, masks, epsilon))
        self._labels.append(labels(opinion.values, masks))

    def samples(self, rollout: Rollout, flown: Tensor | slice) -> Samples:
        """Return the states of the missions just flown, with their labels.

        Args:
            rollout: the missions.
            flown: see `flown_states`.
        """
        policies, known = (torch.stack(part) for part in zip(*self._labels, strict=True))
        return Samples(
            observations=rollout.observations.flatten(0, 2)[flown].half(),
            masks=rollout.masks.flatten(0, 2)[flown],
            labels=policies.flatten(0, 2)[flown],
            weights=known.flatten()[flown].float(),
        )


def flown_states(rollout: Rollout) -> Tensor | slice:
    """Return which of all T·E·N states are of a UAV that flew; it reads them back."""
    return slice(None) if rollout.active is None else rollout.active.flatten().nonzero()[:, 0]


class Lesson:
    """A task of a distillation: its missions, its teacher, and how the student does there.

    Args:
        config: of the student, with teachers and tasks.
        name: of the task.
        number: of the task; each draws missions of its own.
        device: where everything lives.

    Attributes:
        team: checkpoint of the teacher; None where it is a planner.
        task: the missions.

    Raises:
        ConfigError: mission or teacher do not go with the student.
    """

    def __init__(self, config: Config, name: str, number: int, device: torch.device) -> None:
        self._settings = settings = config.distillation
        self.name = name
        teacher = settings.teachers[name]
        self.team = find_team(teacher, config.logging.directory, name)
        trained = None if self.team is None else mission_config(None, (), self.team)
        seen = self.config = _mission(config, name, trained)
        check_lattice(config, seen, f"task {name}")
        if trained is not None:
            check_lattice(config, trained, f"teacher of {name}")
            if trained.observation.sees_uncertainty:  # of beliefs that the missions keep up to date
                seen = with_changes(seen, {"observation": {"uncertainty": True}}, f"task {name}")
        environment = MissionEnvironment(seen, settings.missions, device, "training", rank=number)
        judge = make_teacher(teacher, environment, self.team, settings.temperature)
        self.task = TaughtTask(environment, self.config, judge)
        self._collector = RolloutCollector(self.task, len(self.task.metric_names))
        if config.evaluation.interval:
            missions = config.evaluation.missions
            self._validation = MissionEnvironment(self.config, missions, device, "validation")

    def weights_read(self) -> dict[str, str]:
        """Return checksums of what missions and teacher read, see `check_weights`.

        What a planner of the user's own reads is not known.
        """
        files = files_read(self.config)
        if self.team is not None:
            return files | team_weights(self.team, f"{TEACHERS}.{self.name}")
        if self._settings.teachers[self.name] == "search":
            return files | weights_read(self.config.experiment.baselines.search)
        return files

    def fly(
        self, act: Callable[[Tensor], Tensor], share: float
    ) -> tuple[Rollout, Samples, dict[str, Tensor]]:
        """Let the student fly missions; return them, what there is to learn, and what it did.

        Args:
            act: maps observations [E, N, C_a, X, Y] to logits [E, N, A].
            share: of the moves that the teacher makes.

        Returns:
            The last are scalars on the device: `loss`, the divergence before anything is learned,
            and `agreement`, the share of labelled states in which the most probable actions of
            both are the same; `left_out`, states without a label; `return`, `roi_entropy` and `f1`
            of the missions flown.
        """
        self.task.share = share
        rollout = self._collector.collect(act, 0.0)
        states = flown_states(rollout)
        samples = self.task.samples(rollout, states)
        policy = rollout.probabilities.flatten(0, 2)[states]
        same = (policy.argmax(-1) == samples.labels.argmax(-1)).float()
        flown = self.task.state
        measured = {
            "loss": divergence(samples, policy, self._settings.loss),
            "agreement": weighted_mean(same, samples.weights),
            "left_out": (1 - samples.weights).sum(),
            "return": rollout.rewards.sum(0).mean(),
            "roi_entropy": roi_entropy(flown.global_belief, flown.truth).mean(),
            "f1": f1(flown.global_belief, flown.truth).mean(),
        }
        return rollout, samples, measured

    def validate(self, act: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Fly the task's validation missions with the student's best actions; return means."""
        planner = LearnedPlanner(act, self.task.builder, self.task.environment.lattice)
        flown = validate(self._validation, planner)
        names = {"roi_entropy": "entropy", "f1": "f1", "return": "return"}
        return {f"validation_{name}": flown[key].mean() for key, name in names.items()}


def _mission(config: Config, name: str, trained: Config | None) -> Config:
    """Return the student's configuration with the mission of a task."""
    tasks = config.distillation.tasks
    if name in tasks:
        return with_mission(config, task_config(config, name), name)
    if trained is not None:
        return with_mission(config, trained, name)
    if tasks:
        raise ConfigError(
            f"{TASKS}: {name} is none of {', '.join(tasks)}; a planner has no mission of its own"
        )
    return config
