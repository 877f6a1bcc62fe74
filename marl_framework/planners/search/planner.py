"""The search planner: each UAV in turn plans all its remaining moves and makes the first one."""

from __future__ import annotations

import math
from functools import partial
from itertools import chain, pairwise

import torch
from torch import Tensor

from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.policy import best_actions
from marl_framework.config.mission import SearchConfig
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.networks.map_predictor import PARTS
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import placed_predictor, predictor_weights
from marl_framework.planners.protocol import Decision
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.models import PredictedMap, TrueMap
from marl_framework.planners.search.problem import Problem
from marl_framework.planners.search.replayed import ReplayedSearch, Search
from marl_framework.planners.search.threads import on_threads
from marl_framework.planners.search.windows import Windows

_PREDICTOR = "experiment.baselines.search.predictor"
_WITHOUT_SECTORS = SearchConfig(presumed_share=0.0)
_MAX_ELEMENTS = 2**26  # maximum size of a search's largest array
_MIN_ENTROPY = 1e-9  # plans are assumed to remove nothing from less entropy
_MIN_MISSIONS = 8  # minimum number of missions per thread


class SearchPlanner:
    """Flies the path that is expected to remove the most entropy from the region of interest.

    Each UAV in turn searches over all its remaining moves, and searches again after each move. It
    searches on its own map, minus the entropy that the known plans of other UAVs will remove. A UAV
    knows the plan that each other UAV had when last heard, or all plans if
    `model.knows_all_plans`. As a known plan fades, the UAV assumes that the other UAV stays in its
    sector; see `Sectors`. The planner stores plans between moves, so it must fly one batch of
    missions at a time, from the start. With `own` it decides for one UAV; see `SharingPlanner`.

    The planner reads the settings `plan_memory`, `presumed_share`, `presumed_beside_plan` and
    `rate_actions`.
    """

    def __init__(
        self,
        name: str,
        view: LatticeView,
        model: TrueMap | PredictedMap,
        search: BeamSearch,
        settings: SearchConfig = _WITHOUT_SECTORS,
    ) -> None:
        self.name = name
        self._view, self._model = view, model
        self._windows = Windows(view, settings.horizon)
        self._find: Search = partial(self._windows.search, search)
        device = view.lattice.offsets.device
        # Over windows, each move searches over other tables.
        if device.type == "cuda" and view.compute.cuda_graphs and self._windows.is_whole:
            self._find = ReplayedSearch(self._find, Graphs(device))
        self._settings = settings
        self.chunk = max(1, _MAX_ELEMENTS // self._windows.elements(search))
        self._plans = torch.ones(0)
        self.own: int | None = None
        self.plan = torch.ones(0)
        self._heard: dict[int, Tensor] = {}

    def hear(self, uav: int, plan: Tensor) -> None:
        """Take the plan of another UAV; see `SharingPlanner`."""
        assert self.own is not None
        if uav < self.own:
            self._heard[uav] = plan
        elif self._plans.numel():  # there are no plans before the first move
            self._plans[:, self.own, uav] = plan

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        sectors = self._view.lattice.sectors.maps(state.sector, state.team_size)
        presumed = self._settings.presumed_share * sectors
        plans = self._plans = self._recall_plans(state, 1 - presumed)
        beside = 1 - self._settings.presumed_beside_plan * presumed
        missions, threads = len(state.positions), 1
        if state.positions.device.type == "cpu":
            threads = max(1, min(torch.get_num_threads(), missions // _MIN_MISSIONS))
        share = math.ceil(missions / threads)

        @torch.no_grad()
        def act_on_share(first: int) -> list[tuple[Tensor, Tensor, Tensor]]:
            last = min(first + share, missions)
            chunks = [slice(*ends) for ends in pairwise([*range(first, last, self.chunk), last])]
            return [self._act(state[at], plans[at], beside[at]) for at in chunks]

        firsts = range(0, missions, share)
        decisions = on_threads(act_on_share, firsts) if len(firsts) > 1 else [act_on_share(0)]
        actions, masks, scores = map(torch.cat, zip(*chain(*decisions), strict=True))
        return Decision(actions, masks, scores=scores if self._settings.rate_actions else None)

    def _recall_plans(self, state: MissionState, presumed: Tensor) -> Tensor:
        """Return the share of entropy that UAV j's plan leaves, as known to UAV i, [E, i, j, X, Y].

        `presumed`: share that UAV j is assumed to leave while its plan is unknown, [E, j, X, Y].
        """
        team, presumed = presumed.shape[1], presumed.unsqueeze(1)
        new = presumed.expand(-1, team, -1, -1, -1)
        plans = self._plans  # changed in place: those of large teams have hundreds of megabytes
        if plans.shape == new.shape:
            memory = self._settings.plan_memory * (state.t > 0)
            change = torch.sub(presumed, plans, out=plans).mul_(memory.view(-1, 1, 1, 1, 1))
            torch.sub(presumed, change, out=plans)
        else:
            plans = new.clone()
        own = torch.eye(team, dtype=torch.bool, device=plans.device)
        return plans.masked_fill_(own[..., None, None], 1.0)

    def _act(
        self, state: MissionState, plans: Tensor, beside: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, masks and scores; write the new plans into `plans`."""
        windows, model = self._windows, self._model
        entropy = model.left(state) if windows.is_whole else model.left(state, windows)
        moves = state.budget + 1 - state.t
        level_moves = self._view.lattice.level_moves(state.left)
        # On a GPU, `max` would make the host wait, so the search always uses the full depth.
        most = int(moves.max()) if moves.device.type == "cpu" else self._view.moves
        scores = plans.new_zeros(*state.positions.shape[:2], self._view.lattice.num_actions)

        def choose(i: int, mask: Tensor) -> Tensor:
            if self.own not in (None, i):  # its actions are known or ignored
                if i in self._heard:
                    plans[:, self.own, i] = self._heard.pop(i)
                return best_actions(torch.zeros_like(mask, dtype=torch.float32), mask)
            affordable = moves if level_moves is None else moves.minimum(level_moves[:, i])
            place = state.positions[:, i]
            expected = entropy[:, i] * windows.cut(plans[:, i], place).prod(1)
            caution = state.caution[:, i : i + 1]
            problem = Problem(place, mask, state.moves, expected, affordable, caution, most)
            action, left, gains = self._find(problem)
            if gains is not None:
                scores[:, i] = gains.where(mask, 0.0)
            remaining = (left / expected).where(expected > _MIN_ENTROPY, 1.0)
            remaining = windows.paste(remaining, place) * beside[:, i]
            if self._view.has_inactive:
                remaining = remaining.where(state.active[:, i, None, None], 1.0)
            if i == self.own:
                self.plan = remaining[0]
            informed = state.heard[:, :, i] | self._model.knows_all_plans
            informed[:, i] = False  # a UAV ignores its own previous plan when it searches again
            plans[:, :, i] = remaining.unsqueeze(1).where(informed[..., None, None], plans[:, :, i])
            return action

        actions, masks = self._view.lattice.choose_in_missions(state, choose)
        return actions, masks, scores


def make(environment: MissionEnvironment) -> SearchPlanner:
    """Create the planner that searches on a predicted map.

    Raises ConfigError if the predictor cannot be read or does not fit.
    """
    config, lattice = environment.config, environment.lattice
    settings, precision = config.experiment.baselines.search, config.compute.precision
    view = LatticeView(config, lattice, PARTS)
    network = placed_predictor(settings.predictor, _PREDICTOR, config, lattice)
    model = PredictedMap(
        view, network, precision, settings.outside_weight, settings.target == "map"
    )
    search = BeamSearch(view, settings.beams, settings.rate_actions)
    return SearchPlanner("search", view, model, search, settings)


def weights_read(settings: SearchConfig) -> dict[str, str]:
    """Return checksums of the weights that `make` reads, for `check_weights`."""
    return predictor_weights(settings.predictor, _PREDICTOR)


class OraclePlanner(SearchPlanner):
    """Flies the path that removes the most entropy from the true region of interest.

    The result is not an upper bound: each UAV keeps few paths and does not know the plans of UAVs
    that choose later. A wider beam flies better. With 8 UAVs, information gain has a higher F1.
    """

    def __init__(self, config: Config, lattice: Lattice) -> None:
        view = LatticeView(config, lattice)
        super().__init__("oracle", view, TrueMap(view), BeamSearch(view))


def make_oracle(environment: MissionEnvironment) -> OraclePlanner:
    """Create the planner that searches on the true map."""
    return OraclePlanner(environment.config, environment.lattice)
