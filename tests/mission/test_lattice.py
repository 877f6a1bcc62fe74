from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.mission.lattice import Lattice, action_offsets
from tests.small import small_config


def lattice_of(**options) -> Lattice:
    return Lattice(small_config(**options), "cpu")


def test_action_sets_have_the_documented_order():
    assert action_offsets(4) == [(-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0)]
    assert action_offsets(6) == [(0, 0, 1), *action_offsets(4), (0, 0, -1)]
    nine, full = action_offsets(9), action_offsets(27)
    assert [nine[k] for k in (0, 1, 4)] == [(-1, -1, 0), (-1, 0, 0), (0, 0, 0)]
    assert [step[2] for step in full[::9]] == [1, 0, -1]
    assert full[13] == (0, 0, 0)


def collision_masks_by_loop(lattice, positions, draws):
    """One mission in plain Python: the rule of the specification."""
    taken, masks, actions = [], [], []
    steps = lattice.offsets.tolist()
    for i, position in enumerate(positions):
        goals = [[p + s for p, s in zip(position, step, strict=True)] for step in steps]
        mask = [
            any(step) and all(0 <= g < n for g, n in zip(goal, lattice.shape, strict=True))
            for goal, step in zip(goals, steps, strict=True)
        ]
        for cell in taken:
            for a, goal in enumerate(goals):
                if mask[a] and goal[:2] == cell and sum(mask) > 1:
                    mask[a] = False
        scores = [d if m else -1.0 for d, m in zip(draws[i], mask, strict=True)]
        action = scores.index(max(scores))
        taken.append(goals[action][:2])
        masks.append(mask)
        actions.append(action)
    return actions, masks


@settings(max_examples=60)
@given(
    actions=st.sampled_from([4, 6, 9, 27]),
    agents=st.integers(1, 9),
    side=st.sampled_from([5.0, 10.0, 20.0]),
    seed=st.integers(0, 2**20),
)
def test_choices_in_order_equal_a_plain_loop(actions, agents, side, seed):
    agents = min(agents, int(side / 5 + 1) ** 2)
    lattice = lattice_of(actions=actions, agents=agents, dims=(side, side), pixels=(8, 8))
    generator = torch.Generator().manual_seed(seed)
    e, n = 6, agents
    # Crowded on purpose: several UAVs may even share a cell.
    positions = torch.stack(
        [torch.randint(size, (e, n), generator=generator) for size in lattice.shape], dim=-1
    )
    draws = torch.rand(e, n, actions, generator=generator)

    def choose(i, mask):
        return torch.where(mask, draws[:, i], -1.0).argmax(-1)

    chosen, masks = lattice.choose_in_order(positions, choose)
    table = lattice.table()[None].expand(e, *lattice.shape, actions)
    assert lattice.allowed(positions, table).equal(lattice.boundary_mask(positions))
    for k in range(e):
        expected = collision_masks_by_loop(lattice, positions[k].tolist(), draws[k].tolist())
        assert chosen[k].tolist() == expected[0]
        assert masks[k].tolist() == expected[1]


def test_random_starts_are_distinct_uniform_and_at_the_top():
    lattice = lattice_of(agents=5)
    keys = torch.rand(4000, 49, generator=torch.Generator().manual_seed(0))
    starts = lattice.start_positions(keys)
    cells = lattice.cells(starts)
    assert (starts[..., 2] == lattice.shape[2] - 1).all()
    assert all(len(set(row)) == 5 for row in cells.tolist())
    counts = torch.bincount(cells.flatten(), minlength=49).double()
    expected = 4000 * 5 / 49
    # Each count is binomial, with a standard deviation of about 19 at an expectation of 408.
    assert (counts - expected).abs().max() < 5 * expected**0.5
    first = torch.bincount(cells[:, 0], minlength=49)
    assert first.gt(0).all()  # UAV 0 starts anywhere, not at one place


@pytest.mark.parametrize("agents", range(1, 17))
def test_corner_starts_are_distinct_and_those_of_the_paper(agents):
    lattice = lattice_of(dims=(50.0, 50.0), agents=agents, missions={"start": "corners"})
    starts = lattice.start_positions(torch.rand(1, 121))
    assert len(set(lattice.cells(starts)[0].tolist())) == agents
    if agents == 4:
        corners = [[x, y, 15.0] for x in (10.0, 40.0) for y in (10.0, 40.0)]
        assert sorted(lattice.metres(starts)[0].tolist()) == corners


def test_published_starts_are_those_of_the_published_code():
    lattice = lattice_of(dims=(50.0, 50.0), agents=4, missions={"start": "published"})
    starts = lattice.start_positions(
        torch.rand(4000, 121, generator=torch.Generator().manual_seed(1))
    )
    assert lattice.metres(starts[:, 0]).unique(dim=0).tolist() == [[25.0, 0.0, 15.0]]
    assert (starts[..., 2] == lattice.shape[2] - 1).all()
    cells = lattice.cells(starts[:, 1:])
    counts = cells.flatten().bincount(minlength=121)
    assert counts.min() > 60  # 12,000 draws of 121 cells, all alike
    assert counts.max() < 140
    shared = (cells[:, 0] == cells[:, 1]).float().mean()
    assert 0.003 < shared < 0.015  # 1 / 121
