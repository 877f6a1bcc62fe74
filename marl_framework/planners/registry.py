"""How the command lines and params files choose a planner."""

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
"""Planners that come with the library."""


def make_planner(
    name: str,
    environment: MissionEnvironment,
    checkpoint: Checkpoint | None = None,
    greedy: bool = True,
) -> Planner:
    """Return a planner.

    Args:
        name: of `NAMES`, or the dotted path of a user's own; that is called with the
            environment.
        environment: that it will fly in.
        checkpoint: of the trained team, for `learned`.
        greedy: the trained team takes its best actions, and does not draw them.

    Raises:
        ConfigError: it cannot be made.
    """
    if name == LEARNED:
        if checkpoint is None:
            raise ConfigError("--policies learned: give the trained team with --checkpoint")
        config, lattice = environment.config, environment.lattice
        team = trained_team(config, checkpoint, environment.device)
        builder = ObservationBuilder(config, lattice, environment.camera)
        return LearnedPlanner(team.act, builder, lattice, greedy)
    path = PLANNERS.get(name, name)
    planner: Planner = load_part(path, "planner", "environment")(environment)
    if not (
        isinstance(getattr(planner, "name", None), str) and callable(getattr(planner, "act", None))
    ):
        raise ConfigError(f"planner: {name}: a planner has name and act(state, generator)")
    return planner if name in PLANNERS else _Checked(name, planner)


class _Checked:
    """Says in one line what a user's planner does wrong."""

    def __init__(self, path: str, planner: Planner) -> None:
        self._path, self._planner = path, planner
        self.name = planner.name

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        found = self._planner.act(state, generator)
        lead = state.positions.shape[:2]
        if not isinstance(found, tuple) or len(found) < 2 or found[0].shape != lead:
            raise ConfigError(
                f"planner: {self._path}.act must return a Decision of actions {list(lead)} and "
                "their masks"
            )
        return Decision(*found)
