"""Beam search on single problems, against loops over paths."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from marl_framework.algorithms.graphs import Graphs
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.problem import Plan, Problem
from marl_framework.planners.search.replayed import ReplayedSearch
from marl_framework.planners.search.windows import Windows
from tests.small import small_config
from tests.tape import TapeBackend

ENV = MissionEnvironment(small_config(budget=6, max_altitude=10.0), 1, "cpu", "test")
VIEW = LatticeView(ENV.config, ENV.lattice)
ACTIONS = ENV.lattice.num_actions
UNUSED = torch.ones(0, 1)  # caution; readings count as the model says
SEEDS = st.integers(0, 10**6)


def problem(missions: int, seed: int, closed: float = 0.0) -> Problem:
    """Missions with maps and moves left, the first with none; a share of the ways is closed."""
    generator = torch.Generator().manual_seed(seed)
    position = torch.rand(missions, 3, generator=generator) * torch.tensor(ENV.lattice.shape)
    left = torch.rand(missions, *ENV.lattice.shape[:2], generator=generator)
    left *= (torch.rand(left.shape, generator=generator) < 0.5).float()
    moves = torch.randint(1, VIEW.moves + 1, (missions,), generator=generator)
    moves[0] = 0
    ways = ENV.lattice.table().expand(missions, *ENV.lattice.shape, -1)
    draws = torch.rand(ways.shape, generator=generator)
    ways = ways & ((draws >= closed) | (ways.cumsum(-1) == 1))  # one way is left
    mask = ENV.lattice.allowed(position.long(), ways)
    return Problem(position.long(), mask, ways, left, moves, UNUSED, VIEW.moves)


@settings(max_examples=25)
@given(SEEDS)
def test_missions_at_once_are_searched_as_each_alone(seed: int) -> None:
    case, search = problem(4, seed), BeamSearch(VIEW, 4)
    plan = search.search(case)
    assert torch.equal(plan.left[0], case.entropy[0])  # no moves are left
    assert case.mask.gather(1, plan.action.unsqueeze(1)).all()
    for e in range(4):
        alone = search.search(Problem(*(each[e : e + 1] for each in case[:6]), VIEW.moves))
        assert alone.action == plan.action[e]
        torch.testing.assert_close(alone.left[0], plan.left[e])


@pytest.mark.parametrize("closed", [0.0, 0.4])
def test_a_wide_search_finds_the_best_of_all_paths(closed: float) -> None:
    case = problem(3, 3, closed)
    case.horizon[:] = 3
    plan = BeamSearch(VIEW, 400).search(case)
    for e in range(3):
        gains = {path: gain(case, e, path) for path in product(range(ACTIONS), repeat=3)}
        best = pytest.approx(max(gains.values()), abs=1e-3)
        assert (case.entropy[e] - plan.left[e]).sum().item() == best
        assert max(g for path, g in gains.items() if path[0] == plan.action[e]) == best


def test_a_search_that_rates_actions_finds_the_best_path_of_each() -> None:
    case = problem(4, 3, 0.4)
    case.horizon[1:] = 3
    plan = BeamSearch(VIEW, 400, rate_actions=True).search(case)
    assert plan.gains is not None
    gains = plan.gains.masked_fill(~case.mask, -torch.inf)
    assert (gains[0] == torch.zeros(()).where(case.mask[0], -torch.inf)).all()
    for e in range(1, 4):
        best = torch.full((ACTIONS,), -torch.inf)
        for path in product(range(ACTIONS), repeat=3):
            if (found := gain(case, e, path)) >= 0:
                best[path[0]] = max(best[path[0]], found)
        torch.testing.assert_close(gains[e], best, atol=1e-3, rtol=0)
        assert plan.action[e] == gains[e].argmax()
        removed = (case.entropy[e] - plan.left[e]).sum()
        torch.testing.assert_close(removed, gains[e].max(), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("compiled", "rated"), [(False, False), (True, False), (True, True)])
def test_a_search_in_windows_finds_the_best_paths_of_a_short_horizon(
    compiled: bool, rated: bool
) -> None:
    """Windows at borders and corners, too; the best of all paths of two moves is found."""
    config = small_config(budget=6, dims=(70.0, 55.0), compute={"compile": compiled})
    env = MissionEnvironment(config, 6, "cpu", "test")
    view, state = LatticeView(env.config, env.lattice), env.reset()
    generator = torch.Generator().manual_seed(2)
    x, y, _ = env.lattice.shape
    positions = torch.tensor(
        [(0, 0, 0), (x - 1, y - 1, 1), (0, y - 1, 2), (6, 5, 0), (9, 0, 2), (7, 4, 1)]
    )
    ways = state.moves & (torch.rand(state.moves.shape, generator=generator) < 0.8)
    mask = env.lattice.allowed(positions, ways)
    left = torch.rand(6, x, y, generator=generator)
    moves = torch.tensor([7, 1, 5, 2, 7, 7])
    windows = Windows(view, 2)
    assert not windows.is_whole
    at = torch.arange(len(view.tables.rows)) // (y * env.lattice.shape[2])
    away = (torch.arange(x) - at.unsqueeze(1)).abs()
    assert (away * (view.tables.rows > 0)).max() <= view.reach
    search = BeamSearch(view, 400, rate_actions=rated)
    local = windows.cut(left.unsqueeze(1), positions).squeeze(1)
    plan = windows.search(search, Problem(positions, mask, ways, local, moves, UNUSED, 7))
    short = Problem(positions, mask, ways, left, moves.clamp(max=2), UNUSED, 2)
    whole = search.search(short)
    assert mask.gather(1, plan.action.unsqueeze(1)).all()
    found, best = (local - plan.left).sum((1, 2)), (left - whole.left).sum((1, 2))
    torch.testing.assert_close(found, best, rtol=0, atol=1e-3)
    pasted = windows.paste(plan.left / local, positions)
    torch.testing.assert_close((left * (1 - pasted)).sum((1, 2)), found, rtol=0, atol=1e-4)


def gain(case: Problem, e: int, path: tuple[int, ...]) -> float:
    """Entropy that readings along a path remove; −1 where it leaves its ways."""
    position, rest = case.position[e], case.entropy[e]
    for action in path:
        if not case.allowed_moves[(e, *position.tolist(), action)]:
            return -1.0
        position = position + ENV.lattice.offsets[action]
        rest = VIEW.apply_readings(VIEW.lattice.places(position), rest)
    return (case.entropy[e] - rest).sum().item()


def test_a_beam_searches_no_deeper_than_moves_are_left_and_finds_the_same() -> None:
    """On a GPU, the host does not know how many moves are left."""
    compute = ENV.config.compute.model_copy(update={"compile": False})
    outlooks = []

    class Counted(LatticeView):
        def score_actions(self, places: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
            outlooks.append(places)
            return super().score_actions(places, left)

    config = ENV.config.model_copy(update={"compute": compute})
    search = BeamSearch(Counted(config, ENV.lattice), 8)
    case = problem(6, 3)
    case = case._replace(horizon=case.horizon.clamp(max=3))
    plans = []
    for most in (3, VIEW.moves):
        outlooks.clear()
        plans.append(search.search(case._replace(max_horizon=most)))
        assert len(outlooks) == most
    assert torch.equal(plans[0].action, plans[1].action)
    assert torch.equal(plans[0].left, plans[1].left)


def test_a_replayed_search_finds_what_the_search_finds() -> None:
    """Both numbers of missions are recorded at their third search; later ones are replayed."""
    compute = ENV.config.compute.model_copy(update={"compile": False})
    view = LatticeView(ENV.config.model_copy(update={"compute": compute}), ENV.lattice)
    searches = []

    def search(case: Problem) -> Plan:
        searches.append(case)
        return BeamSearch(view, 8).search(case)

    replayed = ReplayedSearch(search, Graphs(torch.device("cpu"), TapeBackend()))
    cases = [problem(missions, seed, 0.2) for seed in range(6) for missions in (4, 7)]
    found = [(plan.action, plan.left.clone()) for plan in map(replayed, cases)]
    assert len(searches) == 6
    for case, (action, left) in zip(cases, found, strict=True):
        plan = BeamSearch(view, 8).search(case)
        assert torch.equal(action, plan.action)
        assert torch.equal(left, plan.left)
