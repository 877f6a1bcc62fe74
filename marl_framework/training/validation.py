"""Validation during a training: fly fixed missions and record the best result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from marl_framework.config.derived import passes
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import validate, warn_without_interest
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.training.ranks import Ranks


class Validation:
    """Flies the validation missions greedily on rank 0, and records the best result.

    `planners` has an entry for each area; `evaluation.missions` are divided among the areas.

    Attributes:
        best: mean metrics of the best validation, and `training_step`; empty at first. The trainer
            restores the one before if the checkpoint cannot be written.
        since_best: number of validations since the best one.
    """

    def __init__(
        self,
        config: Config,
        device: torch.device,
        ranks: Ranks,
        planners: Sequence[LearnedPlanner],
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._planners = planners
        self._missions: list[MissionEnvironment] = []
        if ranks.leads:
            missions = -(-config.evaluation.missions // len(config.areas))
            self._missions = [
                MissionEnvironment(area, missions, device, "validation") for area in config.areas
            ]
        self.best: dict[str, float] = {}
        self.since_best = 0

    @property
    def is_patient(self) -> bool:
        """Whether `learning.patience` allows further training."""
        return self.since_best < (self._config.learning.patience or math.inf)

    def is_due(self, before: int, step: int) -> bool:
        """Return whether a validation is due after the training steps in (before, step]."""
        interval = self._config.evaluation.interval
        last = step == self._config.learning.training_steps
        return interval > 0 and (last or passes(interval, before, step))

    def fly(self) -> dict[str, Tensor]:
        """Fly the missions on rank 0; return the metrics of each mission, [missions]."""
        flown = [*map(validate, self._missions, self._planners)]
        return {name: torch.cat([area[name] for area in flown]) for name in flown[0]}

    def run(self, step: int) -> tuple[dict[str, float], bool]:
        """Validate after a training step; all ranks call it together.

        Returns the mean metrics over the missions, and whether they are the best so far.
        """
        result: dict[str, float] = {}
        if self._ranks.leads:
            flown = self.fly()
            if not self.best:
                warn_without_interest(flown["roi_entropy"])
            means = torch.stack([flown[name].mean() for name in ("roi_entropy", "f1", "return")])
            names = ("validation_entropy", "validation_f1", "validation_return")
            result = dict(zip(names, means.tolist(), strict=True))
        result = self._ranks.broadcast(result)
        better = self._score(result) > self._score(self.best)
        self.since_best += 1
        if better:
            self.since_best = 0
            self.best = {**result, "training_step": step}
        return result, better

    def _score(self, result: Mapping[str, float]) -> float:
        """Return the score to maximise, by `evaluation.best_by`; -inf without a validation."""
        by = self._config.evaluation.best_by
        value = result.get(f"validation_{by}", math.inf if by == "entropy" else -math.inf)
        return -value if by == "entropy" else value
