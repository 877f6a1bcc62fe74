"""Several batches of missions as one, each with the random numbers of its own environment."""

from __future__ import annotations

from collections.abc import Sequence

from marl_framework.mission.draws import ResetDraws, StepDraws, join_draws
from marl_framework.mission.environment import MissionEnvironment


class JointEnvironment(MissionEnvironment):
    """The missions of environments that differ in nothing but their generators.

    Args:
        parts: the environments; their missions stand one after the other.
    """

    def __init__(self, parts: Sequence[MissionEnvironment]) -> None:
        first = parts[0]
        super().__init__(first.config, sum(part.num_envs for part in parts), first.device)
        self._parts = parts

    def draw_step(self, reuse: bool = False) -> StepDraws:
        """See `MissionEnvironment.draw_step`."""
        return join_draws([part.draw_step(reuse) for part in self._parts])

    def draw_reset(self) -> ResetDraws:
        """See `MissionEnvironment.draw_reset`."""
        return join_draws([part.draw_reset() for part in self._parts])
