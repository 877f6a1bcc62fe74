"""Teachers: trained teams and planners that label the states of a student."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.algorithms.policy import best_actions, log_probabilities, policy_probabilities
from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.parts import PLANNERS
from marl_framework.distillation.tasks import TEACHERS
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Planner
from marl_framework.planners.team import Checkpoint, load_team, team_logits
from marl_framework.runs.names import PRETRAINED


class Advice(NamedTuple):
    """Actions and policy of a teacher in a state."""

    actions: Tensor
    """Actions of all UAVs, chosen jointly, [E, N] int64."""
    masks: Tensor
    """Actions allowed when each UAV chose, [E, N, A] bool."""
    logits: Tensor
    """Logits of all actions, [E, N, A]; −inf for actions that the teacher does not rate."""


Teacher = Callable[[MissionState, torch.Generator], Advice]


def trained_teacher(environment: MissionEnvironment, checkpoint: Checkpoint) -> Teacher:
    """Build a teacher from a trained team, which observes the channels of its own training.

    Raises ConfigError if the team cannot fly in the environment.
    """
    team, lattice = team_logits(environment, checkpoint), environment.lattice

    def advise(state: MissionState, generator: torch.Generator) -> Advice:
        logits = team(state)
        actions, masks = lattice.choose_in_missions(
            state, lambda i, mask: best_actions(logits[:, i], mask)
        )
        return Advice(actions, masks, logits)

    return advise


def planner_teacher(planner: Planner, temperature: float) -> Teacher:
    """Build a teacher from a planner's probabilities, or the softmax of scores, or actions."""

    @torch.no_grad()
    def advise(state: MissionState, generator: torch.Generator) -> Advice:
        decision = planner.act(state, generator)
        if decision.probabilities is not None:
            rated = decision.probabilities > 0
            logits = log_probabilities(decision.probabilities)
        elif decision.scores is not None:
            rated = decision.masks & decision.scores.isfinite()
            logits = decision.scores / temperature
        else:
            codes = torch.arange(decision.masks.shape[-1], device=decision.masks.device)
            rated = decision.actions.unsqueeze(-1) == codes
            logits = torch.zeros(rated.shape, device=rated.device)
        return Advice(decision.actions, decision.masks, logits.masked_fill(~rated, -torch.inf))

    return advise


def labels(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the teacher's policy over the student's allowed actions (`masks`, [E, N, A] bool).

    Returns the softmax of the teacher's `logits`, [E, N, A], uniform if the teacher rates no
    allowed action; and whether the teacher rates any of these actions, [E, N] bool.
    """
    rated = (masks & (logits > -torch.inf)).any(-1)
    return policy_probabilities(torch.where(rated.unsqueeze(-1), logits, 0.0), masks, 0.0), rated


def find_team(teacher: str, directory: str, task: str) -> Checkpoint | None:
    """Return the trained team that a teacher's name refers to; None for a planner.

    The name is a run folder, a run of `directory`, a checkpoint file or `pretrained:NAME`. Raises
    ConfigError if the teacher is unknown, or its checkpoint cannot be read.
    """
    where = f"{TEACHERS}.{task}"
    if teacher in PLANNERS:
        return None
    for path in (teacher, os.path.join(directory, teacher)):
        if path.startswith(PRETRAINED) or os.path.exists(path):
            with found_at(where):
                return load_team(path)
    if "." in teacher and all(part.isidentifier() for part in teacher.split(".")):
        return None  # a custom planner
    raise ConfigError(
        f"{where}: {teacher} does not exist; give a run folder, a run of {directory}, a "
        f"checkpoint, or a planner: {', '.join(PLANNERS)} or a dotted path"
    )
