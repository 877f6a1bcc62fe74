"""Create planners from their names on the command line and in params files."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.parts import LEARNED, PLANNER_NAMES, PLANNERS, make_part
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
        checkpoint: checkpoint of the team; required for `learned`.
        greedy: whether the team takes the most probable actions instead of sampling.

    Raises:
        ConfigError: the planner cannot be created.
    """
    if name == LEARNED:
        if not isinstance(checkpoint, Checkpoint):
            raise ConfigError(
                f"checkpoint {checkpoint!r:.60}: learned requires a trained team's checkpoint; "
                "use find_checkpoint(RUN)"
            )
        team = trained_team(environment.config, checkpoint, environment.device)
        return LearnedPlanner(team.act, make_builder(environment), environment.lattice, greedy)
    if name not in PLANNERS and "." not in name:
        known = ", ".join(PLANNER_NAMES)
        raise ConfigError(f"planner: {name}: unknown; choose from {known}, or give module.Class")
    planner: Planner = make_part(PLANNERS, name, "planner", environment=environment)
    has_name = isinstance(getattr(planner, "name", None), str)
    if not (has_name and callable(getattr(planner, "act", None))):
        raise ConfigError(
            f"planner: {name}: must have a string `name` and a method act(state, generator)"
        )
    return planner if name in PLANNERS else _CheckedPlanner(name, planner, environment.lattice)


class _CheckedPlanner:
    """Validates a custom planner's decisions; these may be plain tuples."""

    def __init__(self, path: str, planner: Planner, lattice: Lattice) -> None:
        self._path, self._planner, self._lattice = path, planner, lattice
        self.name = planner.name

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`.

        Raises ConfigError if the planner's decision is invalid.
        """
        decision = self._planner.act(state, generator)
        if problem := self._find_problem(decision, state):
            raise ConfigError(
                f"planner: {self._path}.act must return a Decision or (actions, masks): {problem}"
            )
        return Decision(*decision)

    def _find_problem(self, decision: object, state: MissionState) -> str | None:
        if not isinstance(decision, tuple):
            return f"it returned a {type(decision).__name__}"
        most = len(Decision._fields)
        if not 2 <= len(decision) <= most:
            return f"it returned a tuple of length {len(decision)}; expected 2 to {most}"
        per_uav = tuple(state.positions.shape[:2])
        per_action = (*per_uav, self._lattice.num_actions)
        expected = [(per_uav, torch.int64), (per_action, torch.bool)] + 2 * [(per_action, None)]
        for name, part, (shape, dtype) in zip(Decision._fields, decision, expected, strict=False):
            if part is None and dtype is None:
                continue
            form = _describe(shape, dtype)
            if not isinstance(part, Tensor):
                return f"{name} must be a tensor {form}, got {type(part).__name__}"
            if part.shape != shape or part.dtype != (dtype or part.dtype):
                return f"{name} must be {form}, got {_describe(tuple(part.shape), part.dtype)}"
        codes = torch.arange(per_action[-1], device=state.positions.device)
        chosen = decision[0].unsqueeze(-1) == codes
        allowed = (chosen & self._lattice.options(state)).any(-1)
        if not (allowed | ~state.active).all():
            return "an action does not exist, leaves the lattice, enters a zone or is too expensive"
        return None


def _describe(shape: tuple[int, ...], dtype: torch.dtype | None) -> str:
    return f"{list(shape)} {str(dtype or '').removeprefix('torch.')}".rstrip()
