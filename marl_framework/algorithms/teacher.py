"""A trained actor that guides another one in training (Schmitt et al. 2018, arXiv 1803.03835)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.config.learning import TeacherConfig

_CHUNK = 4096  # transitions per forward pass


class Teacher:
    """Adds weight · KL(teacher ‖ policy) to an actor's loss; the weight falls linearly to 0.

    Args:
        actor: the teacher, from observations [B, C_a, X, Y] to logits [B, A]; it is frozen.
        settings: the section `learning.teacher`.

    Attributes:
        weight: weight in the current training step.
    """

    def __init__(self, actor: nn.Module, settings: TeacherConfig) -> None:
        self.weight = settings.weight
        self._actor, self._settings = actor.requires_grad_(False), settings

    @torch.no_grad()
    def label(self, flat: Transitions, step: int) -> Transitions:
        """Set the weight of training step `step`; add the teacher's policy if it is above 0."""
        last = self._settings.anneal_steps
        self.weight = self._settings.weight * (max(1 - step / last, 0.0) if last else 1.0)
        if not self.weight:
            return flat
        logits = torch.cat([self._actor(part) for part in flat.observations.split(_CHUNK)])
        return replace(flat, teacher=policy_probabilities(logits, flat.masks, 0.0))
