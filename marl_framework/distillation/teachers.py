"""Teachers: what a trained team or a planner would do in the states that the student reaches."""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from marl_framework.algorithms.policy import (
    best_actions,
    log_probabilities,
    policy_probabilities,
)
from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.parts import PLANNERS
from marl_framework.distillation.tasks import TEACHERS
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint, load_team, team_logits
from marl_framework.runs.names import PRETRAINED


class Opinion(NamedTuple):
    """What a teacher thinks of a state."""

    actions: Tensor
    """It would fly, all UAVs together, [E, N] int64."""
    masks: Tensor
    """Allowed actions when it chose these, [E, N, A] bool."""
    values: Tensor
    """Logits of each action, [E, N, A]; −inf where it says nothing for one."""


class Teacher(Protocol):
    """Has an opinion of every state."""

    def judge(self, state: MissionState, generator: torch.Generator) -> Opinion:
        """Return what it thinks of the missions as they stand."""


class TrainedTeacher:
    """A trained team, which sees through its own channels.

    Args:
        environment: where the student flies.
        checkpoint: of the team.

    Raises:
        ConfigError: the team cannot fly there.
    """

    def __init__(self, environment: MissionEnvironment, checkpoint: Checkpoint) -> None:
        self._logits = team_logits(environment, checkpoint)
        self._lattice = environment.lattice

    def judge(self, state: MissionState, generator: torch.Generator) -> Opinion:
        """Return the best actions and the logits of all."""
        logits = self._logits(state)

        def choose(i: int, mask: Tensor) -> Tensor:
            return best_actions(logits[:, i], mask)

        return Opinion(*self._lattice.choose_in_missions(state, choose), logits)


class PlannerTeacher:
    """A planner, with its policy, the softmax of its scores, or else its action alone.

    Args:
        planner: for the missions of the student.
        temperature: of the softmax over scores.
    """

    def __init__(self, planner: Planner, temperature: float) -> None:
        self._planner = planner
        self._temperature = temperature

    @torch.no_grad()
    def judge(self, state: MissionState, generator: torch.Generator) -> Opinion:
        """Return the planner's actions, and what it says of all."""
        found = self._planner.act(state, generator)
        if found.probabilities is not None:
            values, said = log_probabilities(found.probabilities), found.probabilities > 0
        elif found.scores is not None:
            values, said = found.scores / self._temperature, found.masks
        else:
            codes = torch.arange(found.masks.shape[-1], device=found.masks.device)
            said = found.actions.unsqueeze(-1) == codes
            values = torch.zeros(said.shape, device=said.device)
        return Opinion(found.actions, found.masks, values.masked_fill(~said, -torch.inf))


def labels(values: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a student is to learn where other actions are allowed than its teacher saw.

    Args:
        values: logits of an opinion, [E, N, A].
        masks: actions allowed to the student, [E, N, A] bool.

    Returns:
        The softmax of the logits over these actions [E, N, A]; whether the teacher says anything
        for one of them, [E, N] bool. Where it does not, the first is uniform.
    """
    known = (masks & (values > -torch.inf)).any(-1)
    logits = torch.where(known.unsqueeze(-1), values, 0.0)
    return policy_probabilities(logits, masks, 0.0), known


def find_team(teacher: str, directory: str, task: str) -> Checkpoint | None:
    """Return the trained team that a teacher's name means; None where it is a planner.

    Args:
        teacher: run folder, run of `directory`, checkpoint file, `pretrained:NAME`, or a planner.
        directory: of all runs.
        task: that it teaches, for messages.

    Raises:
        ConfigError: it is nothing of these, or the checkpoint cannot be read.
    """
    where = f"{TEACHERS}.{task}"
    if teacher in PLANNERS:
        return None
    for path in (teacher, os.path.join(directory, teacher)):
        if path.startswith(PRETRAINED) or os.path.exists(path):
            with found_at(where):
                return load_team(path)
    if "." in teacher and all(part.isidentifier() for part in teacher.split(".")):
        return None  # a planner of the user's own
    raise ConfigError(
        f"{where}: {teacher}: there is no such run folder, run of {directory}, or checkpoint, and "
        f"no such planner; planners are {', '.join(PLANNERS)}, or a dotted path"
    )


def make_teacher(
    name: str, environment: MissionEnvironment, checkpoint: Checkpoint | None, temperature: float
) -> Teacher:
    """Return a teacher for an environment.

    Args:
        name: of the planner, where there is no checkpoint.
        environment: where the student flies.
        checkpoint: of a team.
        temperature: of the softmax over a planner's scores.

    Raises:
        ConfigError: it cannot be made.
    """
    if checkpoint is not None:
        return TrainedTeacher(environment, checkpoint)
    return PlannerTeacher(make_planner(name, environment), temperature)
