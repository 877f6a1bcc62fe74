"""How one UAV chooses its next place: its planner, within what is announced and safe."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.flying.messages import Floats, Place
from marl_framework.flying.safety import Rules, Way, refusal
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Planner, SharingPlanner

MakePlanner = Callable[[MissionEnvironment], Planner]


class PilotedLattice(Lattice):
    """Lattice that leaves a planner only the moves that are announced, or safe.

    So a planner that decides for all UAVs in order follows what the earlier ones have announced.

    Attributes:
        announced: announced actions, by UAV.
        unsafe: actions that the pilot's UAV must not choose.
    """

    def __init__(self, own: MissionEnvironment, uav: int) -> None:
        super().__init__(own.config, own.device, own.lattice.tables)
        self._uav = uav
        self.announced: dict[int, int] = {}
        self.unsafe: list[int] = []

    def options(self, state: MissionState) -> Tensor:
        """Return the actions allowed for each UAV; see `Lattice.options`."""
        allowed = super().options(state)
        for uav, action in self.announced.items():
            allowed[:, uav] = False
            allowed[:, uav, action] = True
        safe = allowed[:, self._uav].clone()
        safe[:, self.unsafe] = False
        if safe.any():  # else the UAV stays, whatever its planner chooses
            allowed[:, self._uav] = safe
        return allowed


class Decider:
    """Chooses the moves of one UAV.

    `make_planner` creates the planner from an environment; `generator` is its random generator,
    seeded alike for the team. For `separation` see `safety.Rules`.

    Attributes:
        rules: what safety needs to know of the mission.
    """

    def __init__(
        self,
        uav: int,
        environment: MissionEnvironment,
        make_planner: MakePlanner,
        generator: torch.Generator,
        separation: float,
    ) -> None:
        own = copy.copy(environment)
        own.config, own.has_inactive = _expect_crashes(environment.config), True
        self._uav, self._generator = uav, generator
        self._lattice = lattice = own.lattice = PilotedLattice(own, uav)
        self._planner = make_planner(own)
        if isinstance(self._planner, SharingPlanner):
            self._planner.own = uav
        reach = float(lattice.offsets[:, :2].float().norm(dim=-1).max()) * lattice.spacing
        places = torch.cartesian_prod(*map(torch.arange, lattice.shape)).view(*lattice.shape, 3)
        self.rules = Rules(lattice.metres(places).double().numpy(), reach, separation)

    def hear(self, uav: int, left: Floats) -> None:
        """Take the plan of another UAV; see `messages.Plan.left`."""
        if isinstance(self._planner, SharingPlanner) and left.shape == self._lattice.shape[:2]:
            self._planner.hear(uav, torch.from_numpy(left))

    @property
    def plan(self) -> Floats | None:
        """The plan of the last decision, as `messages.Plan.left`; None if the planner has none."""
        if not isinstance(self._planner, SharingPlanner):
            return None
        left: Floats = self._planner.plan.numpy()
        return left

    @torch.no_grad()
    def decide(
        self, state: MissionState, ways: Mapping[int, Way], announced: Mapping[int, Place | None]
    ) -> tuple[int, Place, str | None]:
        """Return the move that the planner chose, where it leads, and why the UAV stays instead.

        The reason is None if it may move. `ways` are those of the other UAVs in the air;
        `announced` has the next places of the UAVs that decide earlier, if known.
        """
        lattice, places = self._lattice, state.positions[0]
        goals = [[(x, y, z) for x, y, z in each] for each in lattice.destinations(places).tolist()]
        lattice.announced = {
            uav: goals[uav].index(goal)
            for uav, goal in announced.items()
            if goal in goals[uav] and [*goal] != places[uav].tolist()
        }
        allowed = lattice.allowed(state.positions, state.moves)[0, self._uav].tolist()
        open_goals = set(itertools.compress(goals[self._uav], allowed))
        x, y, z = places[self._uav].tolist()
        refusals = [
            refusal((x, y, z), goal, open_goals, ways, self.rules) for goal in goals[self._uav]
        ]
        lattice.unsafe = [action for action, reason in enumerate(refusals) if reason]
        action = int(self._planner.act(state, self._generator).actions[0, self._uav])
        return action, goals[self._uav][action], refusals[action]


def _expect_crashes(config: Config) -> Config:
    """Return a configuration whose planners ignore inactive UAVs: those that have left."""
    uav = config.experiment.uav.model_copy(update={"crash_rate": 1.0})
    experiment = config.experiment.model_copy(update={"uav": uav})
    return config.model_copy(update={"experiment": experiment})
