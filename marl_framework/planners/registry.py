"""Creates planners by their names on command lines and in params files."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.dotted import load_part
from marl_framework.config.errors import ConfigError
from marl_framework.config.parts import LEARNED, PLANNER_NAMES, PLANNERS
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.observations.kernels import make_builder
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
            raise ConfigError(
                "--policies learned: it needs a trained team; add --checkpoint, in Python the "
                "argument checkpoint"
            )
        team = trained_team(environment.config, checkpoint, environment.device)
        builder = make_builder(environment)
        return LearnedPlanner(team.act, builder, environment.lattice, greedy)
    if name not in PLANNERS and "." not in name:
        raise ConfigError(
            f"planner {name}: choose one of {', '.join(PLANNER_NAMES)}, or your own as module.Class"
        )
    path = PLANNERS.get(name, name)
    planner: Planner = load_part(path, "planner", "environment")(environment)
    if not (
        isinstance(getattr(planner, "name", None), str) and callable(getattr(planner, "act", None))
    ):
        raise ConfigError(f"planner: {name}: it must have name and act(state, generator)")
    return planner if name in PLANNERS else _CheckedPlanner(name, planner, environment.lattice)


class _CheckedPlanner:
    """Checks the decisions of a user's planner; a plain tuple will do."""

    def __init__(self, path: str, planner: Planner, lattice: Lattice) -> None:
        self._path, self._planner, self._lattice = path, planner, lattice
        self.name = planner.name

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`.

        Raises:
            ConfigError: the planner returned something else.
        """
        found = self._planner.act(state, generator)
        if not isinstance(found, tuple) or not 2 <= len(found) <= len(Decision._fields):
            raise self._refusal(f"it returned a {type(found).__name__}")
        decision = Decision(*found)
        team = tuple(state.positions.shape[:2])
        each = (*team, self._lattice.num_actions)
        shapes = {"actions": team, "masks": each, "probabilities": each, "scores": each}
        dtypes = {"actions": torch.int64, "masks": torch.bool}
        for name, part in decision._asdict().items():
            if part is None and name not in dtypes:
                continue
            wanted = _describe(shapes[name], dtypes.get(name))
            if not isinstance(part, Tensor):
                raise self._refusal(f"{name} must be a tensor {wanted}, got {type(part).__name__}")
            if part.shape != shapes[name] or part.dtype != dtypes.get(name, part.dtype):
                got = _describe(tuple(part.shape), part.dtype)
                raise self._refusal(f"{name} must be {wanted}, got {got}")
        codes = torch.arange(each[-1], device=decision.actions.device)
        chosen = decision.actions.unsqueeze(-1) == codes
        allowed = (chosen & self._lattice.options(state)).any(-1)
        if not (allowed | ~state.active).all():
            raise self._refusal(
                "an action is none of them, leaves the lattice, enters a zone or cannot be paid for"
            )
        return decision

    def _refusal(self, wrong: str) -> ConfigError:
        return ConfigError(
            f"planner: {self._path}.act must return a Decision or (actions, masks): {wrong}"
        )


def _describe(shape: tuple[int, ...], dtype: torch.dtype | None) -> str:
    return f"{list(shape)} {str(dtype or '').removeprefix('torch.')}".rstrip()
