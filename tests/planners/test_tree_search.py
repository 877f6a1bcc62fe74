"""Tree search: as a loop over walkers finds it, for any number of missions and leaves."""

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
from marl_framework.planners.search.greedy import fly_greedily
from marl_framework.planners.search.models import TrueMap
from marl_framework.planners.search.planner import SearchPlanner
from marl_framework.planners.search.protocol import Plan, Problem
from marl_framework.planners.search.selection import EXPLORATION, Edges, select
from marl_framework.planners.search.tree import TreeSearch
from tests.small import small_config

ENV = MissionEnvironment(small_config(budget=6, max_altitude=10.0), 1, "cpu", "test")
VIEW = LatticeView(ENV.config, ENV.lattice)
SHAPE = torch.tensor(ENV.lattice.shape)


def problem(missions: int, seed: int) -> tuple[Tensor, ...]:
    """Positions, masks, ways, maps, moves left; of many missions two have 0 and 1 moves."""
    generator = torch.Generator().manual_seed(seed)
    position = (torch.rand(missions, 3, generator=generator) * SHAPE).long()
    mask = ENV.lattice.boundary_mask(position.unsqueeze(1)).squeeze(1)
    left = torch.rand(missions, *ENV.lattice.shape[:2], generator=generator)
    left *= (torch.rand(left.shape, generator=generator) < 0.5).float()
    moves = torch.randint(2, VIEW.moves + 1, (missions,), generator=generator)
    moves[:2] = torch.tensor([0, 1])[: len(moves[:2])] if missions > 2 else moves[:2]
    ways = ENV.lattice.table().expand(missions, *ENV.lattice.shape, -1)
    return position, mask, ways, left, moves


def search(case: tuple[Tensor, ...], simulations: int, depth: int, leaves: int) -> Plan:
    return TreeSearch(VIEW, simulations, depth, leaves).search(Problem(*case, VIEW.moves))


@pytest.mark.parametrize(
    ("simulations", "depth", "leaves"), [(40, 6, 1), (40, 2, 1), (45, 6, 4), (40, 3, 16)]
)
def test_it_finds_what_walkers_one_after_another_find(
    simulations: int, depth: int, leaves: int
) -> None:
    case = problem(5, seed=leaves)
    tree = TreeSearch(VIEW, simulations, depth, leaves).grow(Problem(*case, VIEW.moves))
    plain = PlainTree(PlainLattice.of(VIEW), simulations, depth, leaves)
    for e in range(5):
        position, mask, _, left, moves = (part[e] for part in case)
        allowed = mask.nonzero().flatten()
        plain.search(tuple(position.tolist()), allowed.tolist(), left.numpy(), int(moves))
        assert tree.visits[e, allowed].tolist() == plain.root.visits.tolist()
        assert tree.children[e].count_nonzero() == plain.found
        assert tree.action[e] == plain.action
        torch.testing.assert_close(tree.rest[e], torch.from_numpy(plain.rest), atol=1e-4, rtol=0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), leaves=st.sampled_from([1, 3, 8]), depth=st.integers(1, 8))
def test_more_simulations_are_never_worse_and_none_is_worse_than_greedy(
    seed: int, leaves: int, depth: int
) -> None:
    case = problem(4, seed)
    position, mask, ways, left, moves = case
    greedy = fly_greedily(VIEW, position, ways, left, moves, VIEW.moves, mask)
    gains = [greedy.gain]
    for simulations in (leaves, 3 * leaves, 6 * leaves):
        action, after, _ = search(case, simulations, depth, leaves)
        assert mask.gather(1, action.unsqueeze(1)).all()
        assert ((after >= 0) & (after <= left)).all()
        gains.append((left - after).sum((1, 2)))
    for fewer, more in pairwise(gains):
        assert (more >= fewer - 1e-3).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), leaves=st.sampled_from([1, 4, 9]))
def test_missions_at_once_are_searched_as_each_alone(seed: int, leaves: int) -> None:
    case = problem(4, seed)
    actions, after, _ = search(case, 18, 5, leaves)
    for e in range(4):
        action, rest, _ = search(tuple(part[e : e + 1] for part in case), 18, 5, leaves)
        assert action == actions[e]
        torch.testing.assert_close(rest[0], after[e])


def test_without_moves_left_nothing_is_flown() -> None:
    position, mask, ways, left, moves = problem(2, seed=3)
    action, after, policy = TreeSearch(VIEW, 4, 3, 2).search(
        Problem(position, mask, ways, left, 0 * moves, 0)
    )
    assert mask.gather(1, action.unsqueeze(1)).all()
    assert torch.equal(after, left)
    assert policy is not None
    assert policy.gather(1, action.unsqueeze(1)).eq(1).all()


def test_its_policy_is_how_often_flights_began_with_each_action() -> None:
    case = problem(5, seed=2)
    tree, found = (
        TreeSearch(VIEW, 40, 6, 4).grow(Problem(*case, VIEW.moves)),
        search(case, 40, 6, 4),
    )
    position, mask, ways, left, moves = case
    greedy = fly_greedily(VIEW, position, ways, left, moves, VIEW.moves, mask).first
    assert found.policy is not None
    for e in range(5):
        tried = tree.visits[e, : ENV.lattice.num_actions].tolist()
        tried[greedy[e]] += 1
        assert found.policy[e].tolist() == pytest.approx([count / sum(tried) for count in tried])
    assert found.policy[~mask].eq(0).all()
    assert found.policy.gather(1, found.action.unsqueeze(1)).gt(0).all()


@pytest.mark.parametrize("favoured", range(ENV.lattice.num_actions))
def test_a_prior_says_which_first_action_is_tried_first(favoured: int) -> None:
    case = problem(6, seed=4)
    mask, moves = case[1], case[4]
    prior = torch.full(mask.shape, 0.1)
    prior[:, favoured] = 0.5
    tree = TreeSearch(VIEW, 2, 6, 1).grow(Problem(*case, VIEW.moves, prior))
    tried = tree.visits[:, favoured] > 0
    assert torch.equal(tried, mask[:, favoured] & (moves > 0))


def test_decisions_tell_the_policy_of_every_uav() -> None:
    planner = SearchPlanner("tree", VIEW, TrueMap(VIEW), TreeSearch(VIEW, 12, 4, 4))
    planner._chunk = 2
    state = ENV.reset(ENV.draw_reset())
    found = planner.act(state, ENV.generator)
    assert found.probabilities is not None
    assert found.probabilities.shape == found.masks.shape
    assert found.probabilities[~found.masks].eq(0).all()
    assert found.probabilities.gather(2, found.actions.unsqueeze(2)).gt(0).all()
    beam = SearchPlanner("beam", VIEW, TrueMap(VIEW), BeamSearch(VIEW, 4))
    assert beam.act(state, ENV.generator).probabilities is None


def test_each_uav_searches_with_what_a_team_thinks_of_its_actions() -> None:
    env = MissionEnvironment(ENV.config, 5, "cpu", "test")
    state = env.reset(env.draw_reset())
    logits = torch.randn(
        5, env.config.missions.most_agents, env.lattice.num_actions, generator=env.generator
    )
    seen: list[Tensor] = []

    class Search(TreeSearch):
        def search(self, problem: Problem) -> Plan:
            assert problem.prior is not None
            seen.append(problem.prior)
            return super().search(problem)

    tree = Search(VIEW, 12, 4, 4)
    planner = SearchPlanner("search", VIEW, TrueMap(VIEW), tree, prior=lambda _: logits)
    planner._chunk = 5
    masks = planner.act(state, env.generator).masks
    expected = logits.masked_fill(~masks, -torch.inf).softmax(-1)
    torch.testing.assert_close(torch.stack(seen, 1), expected)


@pytest.mark.parametrize("closed", [0.0, 0.4])
def test_enough_simulations_find_the_best_of_all_paths(closed: float) -> None:
    position, _, ways, left, moves = problem(2, seed=9)
    moves[:] = 3
    draws = torch.rand(ways.shape, generator=torch.Generator().manual_seed(2))
    ways = ways & ((draws >= closed) | (ways.cumsum(-1) == 1))  # some way is left
    mask = ENV.lattice.allowed(position, ways)
    _, after, _ = search((position, mask, ways, left, moves), 400, 8, 4)
    for e in range(2):
        best = 0.0
        for path in product(range(ENV.lattice.num_actions), repeat=3):
            best = max(best, gain_of(ways[e], position[e], left[e], path))
        assert (left[e] - after[e]).sum().item() == pytest.approx(best, abs=1e-3)


def gain_of(ways: Tensor, position: Tensor, left: Tensor, path: tuple[int, ...]) -> float:
    """Entropy that readings along a path remove; −1 where it leaves its ways."""
    rest = left
    for action in path:
        if not ways[(*position.tolist(), action)]:
            return -1.0
        position = position + ENV.lattice.offsets[action]
        rest = VIEW.after(position, rest)
    return (left - rest).sum().item()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), walkers=st.integers(1, 9))
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
    found = select(at, walks, Edges(*(part[at] for part in (free, new, visits, values, priors))))
    pending = torch.zeros(nodes, actions)
    for k, node in enumerate(at[0].tolist()):
        after = visits[node] + pending[node]
        value = values[node] * visits[node].clamp(min=1) / after.clamp(min=1)
        prior = priors[node] * (visits[node].sum() + 1).sqrt() / (1 + after)
        can = free[node] & ~(new[node] & (pending[node] > 0))
        scores = (value + EXPLORATION * prior).masked_fill(~can, -1)
        expected = bool(walks[0, k] and can.any())
        assert found[1][0, k] == expected
        if expected:
            action = found[0][0, k]
            assert can[action]
            assert scores[action] == pytest.approx(scores.max().item(), abs=2e-5)
            pending[node, action] += 1
