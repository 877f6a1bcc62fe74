"""Sectors: rectangles that cover the area, dealt to UAVs near to where they start."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sectors import Sectors
from tests.small import random_actions, small_config

teams = st.integers(1, 16)
sides = st.integers(4, 12)


def random_starts(missions: int, team: int, shape: tuple[int, int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    cells = torch.rand(missions, math.prod(shape), generator=generator).topk(team).indices
    return torch.stack((cells // shape[1], cells % shape[1], torch.ones_like(cells)), -1)


def by_hand(starts: list[tuple[int, int]], shape: tuple[int, int]) -> Tensor:
    """Each UAV's sector, [N, X, Y]: the rectangles cut one by one, the UAVs sorted at each cut."""
    found = torch.zeros(len(starts), *shape)

    def cut(uavs: list[int], low: list[int], high: list[int]) -> None:
        if len(uavs) == 1:
            found[uavs[0], low[0] : high[0], low[1] : high[1]] = 1
            return
        axis = 0 if high[0] - low[0] >= high[1] - low[1] else 1
        uavs = sorted(uavs, key=lambda uav: (starts[uav][axis], uav))
        first = len(uavs) // 2
        middle = low[axis] + round((high[axis] - low[axis]) * first / len(uavs))
        cut(uavs[:first], low, [*high[:axis], middle, *high[axis + 1 :]])
        cut(uavs[first:], [*low[:axis], middle, *low[axis + 1 :]], high)

    cut(list(range(len(starts))), [0, 0], list(shape))
    return found


@given(sizes=st.lists(teams, min_size=1, max_size=4), x=sides, y=sides, seed=st.integers(0, 99))
def test_teams_of_all_sizes_are_dealt_theirs(sizes: list[int], x: int, y: int, seed: int) -> None:
    team = max(sizes)
    starts = random_starts(len(sizes), team, (x, y), seed)
    sectors = Sectors(team, (x, y), "cpu")
    dealt = sectors.deal(starts, torch.tensor(sizes))
    maps = sectors.maps(dealt, torch.tensor(sizes))
    for e, size in enumerate(sizes):
        planar = [(a, b) for a, b, _ in starts[e, :size].tolist()]
        assert torch.equal(maps[e, :size], by_hand(planar, (x, y)))
        assert (dealt[e, size:] == team).all()
        assert not maps[e, size:].any()


@pytest.mark.parametrize("start", ["random", "corners", "published"])
def test_a_mission_keeps_those_of_its_start(start: str) -> None:
    config = small_config(agents=(2, 5), missions={"start": start})
    env = MissionEnvironment(config, 4, "cpu")
    state = env.reset()
    sectors = Sectors(5, env.lattice.shape[:2], "cpu")
    dealt = sectors.deal(state.positions, state.team_size)
    assert torch.equal(state.sector, dealt)
    before = state.sector.clone()
    mask = torch.tensor([True, False, True, False])
    env.step(state, random_actions(env, state, env.generator))
    env.reset(state=state, mask=mask)
    assert torch.equal(state.sector[~mask], before[~mask])
    again = sectors.deal(state.positions, state.team_size)
    assert torch.equal(state.sector[mask], again[mask])
