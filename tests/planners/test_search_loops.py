"""Compiled loops of the searches against plain operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels.search import find_repeats
from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.beam import BeamSearch, outlook, repeats
from marl_framework.planners.search.models import TrueMap
from marl_framework.planners.search.planner import SearchPlanner
from tests.small import small_config

CONFIG = small_config(budget=6, constraints={"obstacles": {"number": 5}})
ENV = MissionEnvironment(CONFIG, 3, "cpu", "test")
X, Y, Z = ENV.lattice.shape
SEEDS = st.integers(0, 10**6)


def without_loops(config: Config) -> Config:
    compute = config.compute.model_copy(update={"compile": False})
    return config.model_copy(update={"compute": compute})


VIEW, PLAIN = (LatticeView(each, ENV.lattice) for each in (CONFIG, without_loops(CONFIG)))


def paths(seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Ends of paths, and maps that they leave."""
    generator = torch.Generator().manual_seed(seed)
    positions = (torch.rand(number, 3, generator=generator) * torch.tensor([X, Y, Z])).long()
    left = torch.rand(number, X, Y, generator=generator)
    left *= (torch.rand(left.shape, generator=generator) < 0.6).float()
    return positions, left


@given(SEEDS)
def test_what_actions_would_bring(seed: int) -> None:
    positions, left = paths(seed, 8)
    beams = VIEW.lattice.places(positions).view(2, 4), left.view(2, 4, X, Y)
    found = outlook(VIEW, *beams)
    for compiled, plain in zip(found, PLAIN.score_actions(*beams), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=1e-6)


@given(SEEDS)
def test_repeated_paths(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 6, (3, 20), generator=generator).float()
    values += 2e-4 * torch.rand(values.shape, generator=generator)
    values = values.where(values > 1, -torch.inf).sort(1, descending=True).values
    ends = torch.randint(0, 4, values.shape, generator=generator)
    finite = values > -torch.inf  # the others are not taken anyhow
    compiled = find_repeats(values, ends, 1e-4)
    assert torch.equal(compiled & finite, repeats(values, ends, 1e-4) & finite)


@pytest.mark.parametrize(
    ("pixels", "dims", "parts"), [((12, 12), (30.0, 30.0), 1), ((11, 13), (30.0, 20.0), 3)]
)
def test_maps_of_beliefs_and_their_entropy(
    pixels: tuple[int, int], dims: tuple[float, float], parts: int
) -> None:
    config = small_config(pixels=pixels, dims=dims)
    env = MissionEnvironment(config, 2, "cpu", "test")
    generator = torch.Generator().manual_seed(5)
    beliefs = torch.rand(2, 3, *config.geometry.map_shape, generator=generator)
    beliefs[0, 0, :5] = 0.0  # H is that of the least probability
    view = LatticeView(config, env.lattice, parts)
    plain = LatticeView(without_loops(config), env.lattice, parts)
    wanted = plain.entropy_maps(beliefs)
    for cells in (1, 2 * 12 * 13, 10**9):  # as on a GPU, one map at a time, or two, or all
        for found, expected in zip(
            plain.entropy_maps_in_chunks(beliefs, cells), wanted, strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    for number in (1, 2):
        torch.set_num_threads(number)
        for found, expected in zip(view.entropy_maps(beliefs), wanted, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_search_chooses_the_same_with_and_without_loops() -> None:
    assert (VIEW.version, PLAIN.version) == (Version.LOOPS, Version.PLAIN)
    state = ENV.reset(ENV.draw_reset())
    chosen = []
    for view in (VIEW, PLAIN):
        planner = SearchPlanner("search", view, TrueMap(view), BeamSearch(view, 8))
        chosen.append(planner.act(state, ENV.generator).actions)
    assert torch.equal(*chosen)


def test_missions_are_shared_out_among_threads() -> None:
    env = MissionEnvironment(CONFIG, 20, "cpu", "test")
    view = LatticeView(CONFIG, env.lattice)
    state = env.reset()
    seen: list[int] = []

    class Noted(TrueMap):
        def left(self, state: MissionState) -> Tensor:
            seen.append(len(state.positions))
            return super().left(state)

    decisions = []
    for number in (1, 2):
        torch.set_num_threads(number)
        planner = SearchPlanner("search", view, Noted(view), BeamSearch(view, 4))
        first = planner.act(state, env.generator)
        # The plans of the first move are remembered in the second.
        later = planner.act(replace(state, t=state.t + 1), env.generator)
        decisions.append((first, later))
    assert seen == [20, 20, 10, 10, 10, 10]
    for one, two in zip(*decisions, strict=True):
        for expected, found in zip(one, two, strict=True):
            assert expected is None or torch.equal(expected, found)
