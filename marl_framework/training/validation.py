"""Validation during a training: flies fixed missions and keeps the best result."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from marl_framework.config.derived import passes
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import validate, warn_without_interest
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.training.ranks import Ranks


class Validation:
    """Flies the validation missions greedily, on the rank that leads, and keeps the best result.

    Attributes:
        best: means of the best validation and its `training_step`; empty before the first.
        since_best: number of validations without a better one.
    """

    def __init__(
        self, config: Config, device: torch.device, ranks: Ranks, planner: LearnedPlanner
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._planner = planner
        self._missions: MissionEnvironment | None = None
        if ranks.leads:
            missions = config.evaluation.missions
            self._missions = MissionEnvironment(config, missions, device, "validation")
        self.best: dict[str, float] = {}
        self.since_best = 0

    @property
    def is_patient(self) -> bool:
        """Whether the training may continue by `learning.patience`."""
        return self.since_best < (self._config.learning.patience or math.inf)

    def is_due(self, before: int, step: int) -> bool:
        """Return whether a training step in (before, step] asks for a validation."""
        interval = self._config.evaluation.interval
        last = step == self._config.learning.training_steps
        return interval > 0 and (last or passes(interval, before, step))

    def fly(self) -> dict[str, Tensor]:
        """Return the metrics of each mission, [missions]; on the rank that leads."""
        assert self._missions is not None
        return validate(self._missions, self._planner)

    def run(self, step: int) -> tuple[dict[str, float], bool]:
        """Validate after a training step; all ranks call it together.

        Returns:
            Means over the missions; whether they are the best so far.
        """
        found: dict[str, float] = {}
        if self._ranks.leads:
            flown = self.fly()
            if not self.best:
                warn_without_interest(flown["roi_entropy"])
            means = torch.stack([flown[name].mean() for name in ("roi_entropy", "f1", "return")])
            names = ("validation_entropy", "validation_f1", "validation_return")
            found = dict(zip(names, means.tolist(), strict=True))
        found = self._ranks.broadcast(found)
        better = self._score(found) > self._score(self.best)
        self.since_best += 1
        if better:
            self.since_best = 0
            self.best = {**found, "training_step": step}
        return found, better

    def _score(self, found: Mapping[str, float]) -> float:
        """Return the value to maximise by `evaluation.best_by`; no validation counts least."""
        by = self._config.evaluation.best_by
        value = found.get(f"validation_{by}", math.inf if by == "entropy" else -math.inf)
        return -value if by == "entropy" else value
