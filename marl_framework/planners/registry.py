"""Creates planners by their names on command lines and in params files."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.parts import LEARNED, PLANNER_NAMES, PLANNERS, load_part
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import make_builder
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.protocol import Decision, Planner
from marl_framework.planners.team import Checkpoint, trained_team


def make_planner(
    name: str,
    environment: MissionEnvironment,
    checkpoint: Checkpoint | None = None,
    greedy: bool = True,
) -> Planner:
    """Create a planner.

    Args:
        name: one of `PLANNER_NAMES`, or the dotted path of a callable that takes the environment
            and returns a planner.
        environment: environment to fly in.
        checkpoint: trained team, for `learned`.
        greedy: the trained team takes its most probable actions instead of sampling.

    Raises:
        ConfigError: the planner cannot be created.
    """
    if name == LEARNED:
        if checkpoint is None:
            raise ConfigError("--policies learned requires a trained team; add --checkpoint")
        team = trained_team(environment.config, checkpoint, environment.device)
        return LearnedPlanner(team.act, make_builder(environment), environment.lattice, greedy)
    if name not in PLANNERS and "." not in name:
        known = ", ".join(PLANNER_NAMES)
        raise ConfigError(f"planner {name}: choose from {known}, or your own as module.Class")
    make = load_part(PLANNERS.get(name, name), "planner", "environment")
    planner: Planner = make(environment)
    named = isinstance(getattr(planner, "name", None), str)
    if not (named and callable(getattr(planner, "act", None))):
        raise ConfigError(f"planner: {name}: it must have name and act(state, generator)")
    return planner if name in PLANNERS else _CheckedPlanner(name, planner, environment.lattice)


class _CheckedPlanner:
    """Checks the decisions of a custom planner, which may be plain tuples."""

    def __init__(self, path: str, planner: Planner, lattice: Lattice) -> None:
        self._path, self._planner, self._lattice = path, planner, lattice
        self.name = planner.name

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`.

        Raises ConfigError if the planner's decision is invalid.
        """
        decision = self._planner.act(state, generator)
        if problem := self._problem(decision, state):
            raise ConfigError(
                f"planner: {self._path}.act must return a Decision or (actions, masks): {problem}"
            )
        return Decision(*decision)

    def _problem(self, decision: object, state: MissionState) -> str | None:
        if not isinstance(decision, tuple) or not 2 <= len(decision) <= len(Decision._fields):
            return f"it returned a {type(decision).__name__}"
        team = tuple(state.positions.shape[:2])
        each = (*team, self._lattice.num_actions)
        forms = ((team, torch.int64), (each, torch.bool), (each, None), (each, None))
        for name, part, (shape, dtype) in zip(Decision._fields, decision, forms, strict=False):
            if part is None and dtype is None:
                continue
            wanted = _describe(shape, dtype)
            if not isinstance(part, Tensor):
                return f"{name} must be a tensor {wanted}, got {type(part).__name__}"
            if part.shape != shape or part.dtype != (dtype or part.dtype):
                return f"{name} must be {wanted}, got {_describe(tuple(part.shape), part.dtype)}"
        codes = torch.arange(each[-1], device=state.positions.device)
        chosen = decision[0].unsqueeze(-1) == codes
        allowed = (chosen & self._lattice.options(state)).any(-1)
        if not (allowed | ~state.active).all():
            return "an action does not exist, leaves the lattice, enters a zone or cannot be paid"
        return None


def _describe(shape: tuple[int, ...], dtype: torch.dtype | None) -> str:
    return f"{list(shape)} {str(dtype or '').removeprefix('torch.')}".rstrip()
