"""Creates planners by their names on command lines and in params files."""

from __future__ import annotations

import torch

from marl_framework.config.dotted import load_part
from marl_framework.config.errors import ConfigError
from marl_framework.config.parts import PLANNERS
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.protocol import Decision, Planner
from marl_framework.planners.team import Checkpoint, trained_team

LEARNED = "learned"
NAMES = (LEARNED, *PLANNERS)
"""Built-in planners."""


def make_planner(
    name: str,
    environment: MissionEnvironment,
    checkpoint: Checkpoint | None = None,
    greedy: bool = True,
) -> Planner:
    """Create a planner.

    Args:
        name: one of `NAMES`, or the dotted path of a callable that takes the environment and
            returns a planner.
        environment: environment to fly in.
        checkpoint: trained team, for `learned`.
        greedy: the trained team takes its most probable actions instead of sampling.

    Raises:
        ConfigError: the planner cannot be created.
    """
    if name == LEARNED:
        if checkpoint is None:
            raise ConfigError("--policies learned: it needs a trained team; add --checkpoint")
        config, lattice = environment.config, environment.lattice
        team = trained_team(config, checkpoint, environment.device)
        builder = ObservationBuilder(config, lattice, environment.camera)
        return LearnedPlanner(team.act, builder, lattice, greedy)
    path = PLANNERS.get(name, name)
    planner: Planner = load_part(path, "planner", "environment")(environment)
    if not (
        isinstance(getattr(planner, "name", None), str) and callable(getattr(planner, "act", None))
    ):
        raise ConfigError(f"planner: {name}: it must have name and act(state, generator)")
    return planner if name in PLANNERS else _CheckedPlanner(name, planner)


class _CheckedPlanner:
    """Checks the decisions of a user's planner."""

    def __init__(self, path: str, planner: Planner) -> None:
        self._path, self._planner = path, planner
        self.name = planner.name

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        decision = self._planner.act(state, generator)
        shape = state.positions.shape[:2]
        if not isinstance(decision, tuple) or len(decision) < 2 or decision[0].shape != shape:
            raise ConfigError(
                f"planner: {self._path}.act must return a Decision with actions {list(shape)} "
                "and masks"
            )
        return Decision(*decision)
