"""The search planner: each UAV in turn plans all its remaining moves, and makes the first."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.threads import on_threads
from marl_framework.config.errors import ConfigError
from marl_framework.config.mission import SearchConfig
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.networks.convolutional import place
from marl_framework.networks.map_predictor import PARTS
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.predictor import load_predictor, predictor_weights
from marl_framework.planners.protocol import Decision
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.models import MapModel, PredictedMap, TrueMap
from marl_framework.planners.search.protocol import PathSearch, Problem
from marl_framework.planners.search.tree import TreeSearch
from marl_framework.planners.team import load_team, team_logits, team_weights

KEY = "experiment.baselines.search.predictor"
PRIOR = "experiment.baselines.search.prior"
_CHUNK = 2**26  # numbers in the search's largest array at once
_LITTLE = 1e-9  # entropy that no plan counts
_LEAST = 8  # missions of a thread


class SearchPlanner:
    """Flies the path that is expected to remove the most entropy from the region of interest.

    Each UAV in turn searches all its remaining moves, on its map of what the plans that it knows
    leave; after each move all search anew. A UAV knows the plan that each other one had when it
    was last heard, or of all others if its model knows all plans. As such a plan fades, it presumes
    that the other one keeps to its sector, see `Sectors`; it can presume a part of that beside a
    plan just heard, since the other one will plan anew. The planner keeps plans from move to move,
    so it flies a batch of missions from the start, one batch at a time.

    Args:
        name: in tables, files and figures.
        view: the missions' lattice.
        model: what is expected of the map.
        search: finds a path on it.
        plan_memory: how much of a plan still counts one move after it was heard, 0 to 1.
        presumed_share: what a UAV is presumed to remove in its sector while no plan of it counts,
            0 to 1.
        presumed_beside_plan: how much of that it is presumed to remove besides a plan just heard,
            0 to 1.
        prior: gives a trained team's logits [E, N, A] in a state, for a search that asks for them.
    """

    def __init__(
        self,
        name: str,
        view: LatticeView,
        model: MapModel,
        search: PathSearch,
        plan_memory: float = 0.9,
        presumed_share: float = 0.0,
        presumed_beside_plan: float = 0.0,
        prior: Callable[[MissionState], Tensor] | None = None,
    ) -> None:
        self.name = name
        self._view = view
        self._model = model
        self._search = search
        self._plan_memory = plan_memory
        self._prior = prior
        self._presumed_share = presumed_share
        self._presumed_beside_plan = presumed_beside_plan
        self._chunk = max(1, _CHUNK // search.numbers)
        self._has_inactive = view.has_inactive
        self._plans = torch.ones(0)

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        sectors = self._view.lattice.sectors.maps(state.sector, state.team_size)
        presumed = self._presumed_share * sectors
        self._plans = self._remembered(state, 1 - presumed)
        beside = 1 - self._presumed_beside_plan * presumed
        logits = None if self._prior is None else self._prior(state)
        missions = len(state.positions)
        share = math.ceil(missions / self._threads(state))
        firsts = range(0, missions, share)
        if len(firsts) == 1:
            parts = self._decide(state, beside, logits, 0, missions)
        else:
            found = on_threads(
                lambda first: self._decide(state, beside, logits, first, first + share), firsts
            )
            parts = [part for decided in found for part in decided]
        actions, masks, policies = zip(*parts, strict=True)
        policy = None if policies[0] is None else torch.cat(policies)
        return Decision(torch.cat(actions), torch.cat(masks), policy)

    def _remembered(self, state: MissionState, presumed: Tensor) -> Tensor:
        """Return what the plans leave that UAV i last heard of UAV j, [E, N i, N j, X, Y].

        That is a share of the entropy around each lattice position, as `presumed` of UAV j
        [E, N, X, Y] where no plan is known.
        """
        presumed = presumed.unsqueeze(1)
        missions, team = state.positions.shape[:2]
        shape = (missions, team, team, *self._view.lattice.shape[:2])
        plans = presumed.expand(shape)
        if self._plans.shape == shape:
            kept = self._plan_memory * (state.t > 0)
            plans = presumed - kept.view(-1, 1, 1, 1, 1) * (presumed - self._plans)
        own = torch.eye(team, dtype=torch.bool, device=plans.device)
        return plans.masked_fill(own[..., None, None], 1.0)

    def _threads(self, state: MissionState) -> int:
        """Return among how many threads the missions are divided."""
        if state.positions.device.type != "cpu":
            return 1
        return max(1, min(torch.get_num_threads(), len(state.positions) // _LEAST))

    @torch.no_grad()
    def _decide(
        self, state: MissionState, beside: Tensor, logits: Tensor | None, first: int, last: int
    ) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Return `_act` of missions [first, last), of as many at once as memory allows."""
        bounds = [*range(first, min(last, len(self._plans)), self._chunk), last]
        chunks = [slice(*pair) for pair in pairwise(bounds)]
        return [
            self._act(
                state[chunk],
                self._plans[chunk],
                beside[chunk],
                None if logits is None else logits[chunk],
            )
            for chunk in chunks
        ]

    def _act(
        self, state: MissionState, plans: Tensor, beside: Tensor, logits: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        entropy = self._model.left(state)
        moves = state.budget + 1 - state.t
        paid = self._view.lattice.level_moves(state.left)
        # On a GPU the host would wait here for every move, so it searches on to the full depth.
        most = int(moves.max()) if moves.device.type == "cpu" else self._view.moves
        policies: list[Tensor] = []

        def choose(i: int, mask: Tensor) -> Tensor:
            affordable = moves if paid is None else moves.minimum(paid[:, i])
            expected = entropy[:, i] * plans[:, i].prod(1)
            prior = None if logits is None else policy_probabilities(logits[:, i], mask, 0.0)
            action, left, policy = self._search.search(
                Problem(state.positions[:, i], mask, state.moves, expected, affordable, most, prior)
            )
            policies.extend([] if policy is None else [policy])
            remaining = (left / expected).where(expected > _LITTLE, 1.0) * beside[:, i]
            if self._has_inactive:  # what does not fly removes nothing
                remaining = remaining.where(state.active[:, i, None, None], 1.0)
            told = state.heard[:, :, i] | self._model.knows_all_plans
            told[:, i] = False  # its own plan is no one else's
            plans[:, :, i] = remaining.unsqueeze(1).where(told[..., None, None], plans[:, :, i])
            return action

        actions, masks = self._view.lattice.choose_in_missions(state, choose)
        return actions, masks, torch.stack(policies, 1) if policies else None


def make(environment: MissionEnvironment) -> SearchPlanner:
    """Return the planner that searches on a predicted map, for an environment.

    Raises:
        ConfigError: there is no predictor, or it or the prior's team cannot be read or fly.
    """
    settings = environment.config.experiment.baselines.search
    prior = None
    if settings.prior is not None:
        if settings.method != "tree":
            raise ConfigError(f"{PRIOR}: a tree alone has one; leave it out, or set method to tree")
        prior = team_logits(environment, load_team(settings.prior))
    view = LatticeView(environment.config, environment.lattice, PARTS)
    network = load_predictor(settings.predictor, KEY)
    network = place(network, environment.config.compute, environment.device)
    precision = environment.config.compute.precision
    model = PredictedMap(view, network, precision, settings.outside_weight)
    search = make_search(view, settings)
    return SearchPlanner(
        "search",
        view,
        model,
        search,
        settings.plan_memory,
        settings.presumed_share,
        settings.presumed_beside_plan,
        prior,
    )


def weights_read(settings: SearchConfig) -> dict[str, str]:
    """Return checksums of what the planner of `make` reads, see `check_weights`."""
    found = predictor_weights(settings.predictor, KEY)
    if settings.prior is not None:
        found |= team_weights(load_team(settings.prior), PRIOR)
    return found


def make_search(view: LatticeView, settings: SearchConfig) -> PathSearch:
    """Return the search that the settings ask for."""
    if settings.method == "beam":
        return BeamSearch(view, settings.beams)
    return TreeSearch(view, settings.simulations, settings.depth, settings.leaves)


class OraclePlanner(SearchPlanner):
    """Flies the path that removes the most entropy from the true region of interest.

    It is no bound: each UAV keeps few paths and does not know what the later ones will do, and a
    wider beam flies better. With 8 UAVs information gain reaches a higher F1.

    Args:
        config: the missions.
        lattice: tells which actions are allowed, and where they lead.
    """

    def __init__(self, config: Config, lattice: Lattice) -> None:
        view = LatticeView(config, lattice)
        super().__init__("oracle", view, TrueMap(view), BeamSearch(view))


def make_oracle(environment: MissionEnvironment) -> OraclePlanner:
    """Return the planner that searches on the true map, for an environment."""
    return OraclePlanner(environment.config, environment.lattice)
