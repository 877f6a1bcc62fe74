"""Beam and tree search on single problems, against loops over paths and walkers."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.reference.plain_tree import PlainLattice, PlainTree
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.greedy import Problem, fly_greedily
from marl_framework.planners.search.tree import EXPLORATION, TreeSearch, select
from marl_framework.planners.search.windows import PathSearch, Windows
from tests.small import small_config

ENV = MissionEnvironment(small_config(budget=6, max_altitude=10.0), 1, "cpu", "test")
VIEW = LatticeView(ENV.config, ENV.lattice)
ACTIONS = ENV.lattice.num_actions
SEEDS = st.integers(0, 10**6)
SEARCHES = [BeamSearch(VIEW, 4), *(TreeSearch(VIEW, 18, 5, k) for k in (1, 4, 9))]


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
    return Problem(position.long(), mask, ways, left, moves, VIEW.moves)


@pytest.mark.parametrize(
    ("simulations", "depth", "leaves"), [(40, 6, 1), (40, 2, 1), (45, 6, 4), (40, 3, 16)]
)
def test_a_tree_is_that_of_walkers_one_after_another(
    simulations: int, depth: int, leaves: int
) -> None:
    case = problem(5, seed=leaves)
    search = TreeSearch(VIEW, simulations, depth, leaves)
    tree, policy = search.grow(case), search.search(case).policy
    plain = PlainTree(PlainLattice.of(VIEW), simulations, depth, leaves)
    greedy = fly_greedily(VIEW, case).first
    for e in range(5):
        allowed = case.mask[e].nonzero().flatten()
        position, left = tuple(case.position[e].tolist()), case.entropy[e].numpy()
        plain.search(position, allowed.tolist(), left, int(case.horizon[e]))
        visits = plain.root.visits.copy()
        assert tree.visits[e, 0, allowed].tolist() == visits.tolist()
        assert tree.children[e].count_nonzero() == plain.found
        assert tree.action[e] == plain.action
        torch.testing.assert_close(tree.rest[e], torch.from_numpy(plain.rest), atol=1e-4, rtol=0)
        visits[(allowed == greedy[e]).numpy()] += 1
        assert policy[e, allowed].tolist() == pytest.approx((visits / visits.sum()).tolist())
    assert policy[~case.mask].eq(0).all()


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from([1, 3, 8]), st.integers(1, 8))
def test_more_simulations_are_never_worse_and_none_is_worse_than_greedy(
    seed: int, leaves: int, depth: int
) -> None:
    case = problem(4, seed)
    gains = [fly_greedily(VIEW, case).gain]
    for simulations in (leaves, 3 * leaves, 6 * leaves):
        plan = TreeSearch(VIEW, simulations, depth, leaves).search(case)
        assert case.mask.gather(1, plan.action.unsqueeze(1)).all()
        assert plan.policy.gather(1, plan.action.unsqueeze(1)).gt(0).all()
        assert ((plan.left >= 0) & (plan.left <= case.entropy)).all()
        gains.append((case.entropy - plan.left).sum((1, 2)))
    for fewer, more in pairwise(gains):
        assert (more >= fewer - 1e-3).all()


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from(SEARCHES))
def test_missions_at_once_are_searched_as_each_alone(seed: int, search: PathSearch) -> None:
    case = problem(4, seed)
    plan = search.search(case)
    assert torch.equal(plan.left[0], case.entropy[0])  # no moves are left
    assert case.mask.gather(1, plan.action.unsqueeze(1)).all()
    for e in range(4):
        alone = search.search(Problem(*(each[e : e + 1] for each in case[:5]), VIEW.moves))
        assert alone.action == plan.action[e]
        torch.testing.assert_close(alone.left[0], plan.left[e])


@pytest.mark.parametrize("closed", [0.0, 0.4])
@pytest.mark.parametrize("search", [BeamSearch(VIEW, 400), TreeSearch(VIEW, 400, 8, 4)])
def test_a_wide_search_finds_the_best_of_all_paths(search: PathSearch, closed: float) -> None:
    case = problem(3, 3, closed)
    case.horizon[:] = 3
    plan = search.search(case)
    for e in range(3):
        gains = {path: gain(case, e, path) for path in product(range(ACTIONS), repeat=3)}
        best = pytest.approx(max(gains.values()), abs=1e-3)
        assert (case.entropy[e] - plan.left[e]).sum().item() == best
        assert max(g for path, g in gains.items() if path[0] == plan.action[e]) == best


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("method", [BeamSearch, TreeSearch])
def test_a_search_in_windows_finds_the_best_paths_of_a_short_horizon(
    compiled: bool, method: type[PathSearch]
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
    search = BeamSearch(view, 400) if method is BeamSearch else TreeSearch(view, 300, 7, 4)
    local = windows.cut(left.unsqueeze(1), positions).squeeze(1)
    plan = windows.search(search, Problem(positions, mask, ways, local, moves, 7))
    short = Problem(positions, mask, ways, left, moves.clamp(max=2), 2)
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
        rest = VIEW.apply_readings(position, rest)
    return (case.entropy[e] - rest).sum().item()


def test_a_beam_searches_no_deeper_than_moves_are_left_and_finds_the_same() -> None:
    """On a GPU, the host does not know how many moves are left."""
    compute = ENV.config.compute.model_copy(update={"compile": False})
    outlooks = []

    class Counted(LatticeView):
        def score_actions(self, positions: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            outlooks.append(positions)
            return super().score_actions(positions, left)

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


@pytest.mark.parametrize("favoured", range(ACTIONS))
def test_a_prior_says_which_first_action_is_tried_first(favoured: int) -> None:
    case = problem(6, seed=4)
    prior = torch.full(case.mask.shape, 0.1)
    prior[:, favoured] = 0.5
    tree = TreeSearch(VIEW, 2, 6, 1).grow(case._replace(prior=prior))
    tried = tree.visits[:, 0, favoured] > 0
    assert torch.equal(tried, case.mask[:, favoured] & (case.horizon > 0))


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, walkers=st.integers(1, 9))
def test_walkers_choose_as_one_after_another_with_virtual_loss(seed: int, walkers: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    nodes, actions = 3, 4

    def draw(high: int) -> Tensor:
        return torch.randint(0, high, (nodes, actions), generator=generator)

    visits = draw(4).float()
    new = visits == 0
    values, priors = draw(100) / 100, (draw(99) + 1) / 400
    free = draw(5) > 0
    at = torch.randint(0, nodes, (1, walkers), generator=generator)
    walks = torch.rand(1, walkers, generator=generator) < 0.8
    edges = (each[at] for each in (free, new, visits, values, priors))
    chosen, exists = select(at, walks, *edges)
    pending = torch.zeros(nodes, actions)
    for k, node in enumerate(at[0].tolist()):
        after = visits[node] + pending[node]
        value = values[node] * visits[node].clamp(min=1) / after.clamp(min=1)
        prior = priors[node] * (visits[node].sum() + 1).sqrt() / (1 + after)
        can = free[node] & ~(new[node] & (pending[node] > 0))
        scores = (value + EXPLORATION * prior).masked_fill(~can, -1)
        assert exists[0, k] == bool(walks[0, k] and can.any())
        if exists[0, k]:
            action = chosen[0, k]
            assert can[action]
            assert scores[action] == pytest.approx(scores.max().item(), abs=2e-5)
            pending[node, action] += 1
