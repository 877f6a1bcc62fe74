"""The search planner: each UAV in turn plans all its remaining moves and makes the first one."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, pairwise

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
from marl_framework.observations.prediction import load_predictor, predictor_weights
from marl_framework.planners.protocol import Decision
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.greedy import Problem
from marl_framework.planners.search.models import PredictedMap, TrueMap
from marl_framework.planners.search.tree import TreeSearch
from marl_framework.planners.team import load_team, team_logits, team_weights

PathSearch = BeamSearch | TreeSearch
_PREDICTOR = "experiment.baselines.search.predictor"
_PRIOR = "experiment.baselines.search.prior"
_WITHOUT_SECTORS = SearchConfig(presumed_share=0.0)
_MAX_ELEMENTS = 2**26  # of the largest array of a search
_MIN_ENTROPY = 1e-9  # below it, plans remove nothing
_MIN_MISSIONS = 8  # per thread


class SearchPlanner:
    """Flies the path that is expected to remove the most entropy from the region of interest.

    Each UAV in turn searches all its remaining moves, on its own map reduced by the plans that it
    knows; it searches again after each move. A UAV knows the plan that each other one had when it
    was last heard, or all plans if the model says so. As such a plan fades, the UAV assumes that
    the other one keeps to its sector; see `Sectors`. The planner keeps plans from move to move,
    so it must fly one batch of missions at a time, from the start.

    Of the settings it uses `plan_memory`, `presumed_share` and `presumed_beside_plan`. `prior` maps
    states to a trained team's logits [E, N, A], for `TreeSearch`.
    """

    def __init__(
        self,
        name: str,
        view: LatticeView,
        model: TrueMap | PredictedMap,
        search: PathSearch,
        settings: SearchConfig = _WITHOUT_SECTORS,
        prior: Callable[[MissionState], Tensor] | None = None,
    ) -> None:
        self.name = name
        self._view, self._model, self._search = view, model, search
        self._settings, self._prior = settings, prior
        self.chunk = max(1, _MAX_ELEMENTS // search.elements)
        self._plans = torch.ones(0)

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        sectors = self._view.lattice.sectors.maps(state.sector, state.team_size)
        presumed = self._settings.presumed_share * sectors
        plans = self._plans = self._remembered(state, 1 - presumed)
        beside = 1 - self._settings.presumed_beside_plan * presumed
        logits = None if self._prior is None else self._prior(state)
        missions, threads = len(state.positions), 1
        if state.positions.device.type == "cpu":
            threads = max(1, min(torch.get_num_threads(), missions // _MIN_MISSIONS))
        share = math.ceil(missions / threads)

        @torch.no_grad()
        def decide(first: int) -> list[tuple[Tensor, Tensor, Tensor | None]]:
            last = min(first + share, missions)
            parts = [slice(*ends) for ends in pairwise([*range(first, last, self.chunk), last])]
            return [
                self._act(state[at], plans[at], beside[at], None if logits is None else logits[at])
                for at in parts
            ]

        firsts = range(0, missions, share)
        decisions = on_threads(decide, firsts) if len(firsts) > 1 else [decide(0)]
        actions, masks, policies = zip(*chain(*decisions), strict=True)
        policy = None if policies[0] is None else torch.cat(policies)
        return Decision(torch.cat(actions), torch.cat(masks), policy)

    def _remembered(self, state: MissionState, presumed: Tensor) -> Tensor:
        """Return the share of entropy that plans of UAV j known to UAV i leave, [E, i, j, X, Y].

        `presumed` [E, j, X, Y] is the share that a UAV without a known plan leaves.
        """
        team, presumed = presumed.shape[1], presumed.unsqueeze(1)
        plans = presumed.expand(-1, team, -1, -1, -1)
        if self._plans.shape == plans.shape:
            kept = self._settings.plan_memory * (state.t > 0)
            plans = presumed - kept.view(-1, 1, 1, 1, 1) * (presumed - self._plans)
        own = torch.eye(team, dtype=torch.bool, device=plans.device)
        return plans.masked_fill(own[..., None, None], 1.0)

    def _act(
        self, state: MissionState, plans: Tensor, beside: Tensor, logits: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return actions, masks and policy; write the new plans into `plans`."""
        entropy = self._model.left(state)
        moves = state.budget + 1 - state.t
        paid = self._view.lattice.level_moves(state.left)
        # On a GPU the host would wait for `max`, so the search goes to the full depth.
        most = int(moves.max()) if moves.device.type == "cpu" else self._view.moves
        policies: list[Tensor] = []

        def choose(i: int, mask: Tensor) -> Tensor:
            affordable = moves if paid is None else moves.minimum(paid[:, i])
            expected = entropy[:, i] * plans[:, i].prod(1)
            prior = None if logits is None else policy_probabilities(logits[:, i], mask, 0.0)
            action, left, policy = self._search.search(
                Problem(state.positions[:, i], mask, state.moves, expected, affordable, most, prior)
            )
            if policy is not None:
                policies.append(policy)
            remaining = (left / expected).where(expected > _MIN_ENTROPY, 1.0) * beside[:, i]
            if self._view.has_inactive:
                remaining = remaining.where(state.active[:, i, None, None], 1.0)
            told = state.heard[:, :, i] | self._model.knows_all_plans
            told[:, i] = False  # a UAV searches again without its own earlier plan
            plans[:, :, i] = remaining.unsqueeze(1).where(told[..., None, None], plans[:, :, i])
            return action

        actions, masks = self._view.lattice.choose_in_missions(state, choose)
        return actions, masks, torch.stack(policies, 1) if policies else None


def make(environment: MissionEnvironment) -> SearchPlanner:
    """Create the planner that searches on a predicted map.

    Raises ConfigError if the predictor or the prior's team cannot be read, or does not fit.
    """
    settings, compute = environment.config.experiment.baselines.search, environment.config.compute
    prior = None
    if settings.prior is not None:
        if settings.method != "tree":
            raise ConfigError(f"{_PRIOR} requires method: tree; set that, or leave prior out")
        prior = team_logits(environment, load_team(settings.prior))
    view = LatticeView(environment.config, environment.lattice, PARTS)
    network = place(load_predictor(settings.predictor, _PREDICTOR), compute, environment.device)
    model = PredictedMap(view, network, compute.precision, settings.outside_weight)
    return SearchPlanner("search", view, model, make_search(view, settings), settings, prior)


def weights_read(settings: SearchConfig) -> dict[str, str]:
    """Return checksums of the weights that the planner of `make` reads; see `check_weights`."""
    checksums = predictor_weights(settings.predictor, _PREDICTOR)
    if settings.prior is not None:
        checksums |= team_weights(load_team(settings.prior), _PRIOR)
    return checksums


def make_search(view: LatticeView, settings: SearchConfig) -> PathSearch:
    """Create the search that the settings name."""
    if settings.method == "beam":
        return BeamSearch(view, settings.beams)
    return TreeSearch(view, settings.simulations, settings.depth, settings.leaves)


class OraclePlanner(SearchPlanner):
    """Flies the path that removes the most entropy from the true region of interest.

    It is not a bound: each UAV keeps few paths and does not know the plans of later UAVs, and a
    wider beam flies better. With 8 UAVs information gain reaches a higher F1.
    """

    def __init__(self, config: Config, lattice: Lattice) -> None:
        view = LatticeView(config, lattice)
        super().__init__("oracle", view, TrueMap(view), BeamSearch(view))


def make_oracle(environment: MissionEnvironment) -> OraclePlanner:
    """Create the planner that searches on the true map."""
    return OraclePlanner(environment.config, environment.lattice)
