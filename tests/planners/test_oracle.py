"""The oracle, a planner that sees the truth, uses what it sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from marl_framework.evaluation.flight import evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import (
    CoveragePlanner,
    InformationGainPlanner,
    OraclePlanner,
    Planner,
    RandomPlanner,
)
from tests.small import small_config


def test_a_planner_that_sees_the_truth_is_better_here_than_those_that_do_not() -> None:
    config = small_config(dims=(50.0, 50.0), agents=4, budget=14)
    env = MissionEnvironment(config, 20, "cpu", "test")
    planners: list[Planner] = [
        OraclePlanner(config, env.lattice),
        InformationGainPlanner(env.lattice, env.camera, 0.5),
        CoveragePlanner(config, env.lattice),
        RandomPlanner(env.lattice),
    ]
    flown = {planner.name: evaluate(env, planner, 20, 10001).metrics for planner in planners}
    for name in ("information_gain", "coverage", "random"):
        gap = flown[name]["roi_entropy"][:, -1] - flown["oracle"]["roi_entropy"][:, -1]
        assert gap.mean() > 0.05, name
        assert flown["oracle"]["f1"][:, -1].mean() > flown[name]["f1"][:, -1].mean(), name
    # The order of the others is that of what they use of the belief.
    means = [metrics["roi_entropy"][:, -1].mean() for metrics in flown.values()]
    assert means == sorted(means)


def test_it_searches_no_deeper_than_moves_are_left_and_flies_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config(agents=2, budget=5)
    env = MissionEnvironment(config, 3, "cpu", "test")
    planner, blind = (OraclePlanner(config, env.lattice) for _ in range(2))
    searched = []
    for each in (planner, blind):
        outlook = each._search._outlook

        def noted(
            positions: Tensor, left: Tensor, who: OraclePlanner = each, outlook: Any = outlook
        ) -> tuple[Tensor, ...]:
            searched.append(who)
            return outlook(positions, left)

        monkeypatch.setattr(each._search, "_outlook", noted)
    search = blind._search.search
    # As on a GPU, where the host does not know how many moves are left.
    monkeypatch.setattr(
        blind._search,
        "search",
        lambda problem: search(problem._replace(max_horizon=env.episode_length)),
    )
    flown = [evaluate(env, each, 3, 10001).positions for each in (planner, blind)]
    assert torch.equal(*flown)
    depth = env.episode_length
    assert searched.count(planner) == 2 * sum(range(1, depth + 1))
    assert searched.count(blind) == 2 * depth * depth


def test_the_oracle_flies_straight_to_what_only_it_can_know() -> None:
    config = small_config(agents=1, budget=11, dims=(50.0, 50.0), max_altitude=5.0, actions=4)
    env = MissionEnvironment(config, 1, "cpu", "test")
    state = env.reset(env.draw_reset())
    state.positions[0, 0] = torch.tensor([0, 0, 0])
    state.global_belief.fill_(0.5)
    state.truth.fill_(False)
    row0, row1, col0, col1, *_ = (f.item() for f in env.camera.footprint(torch.tensor([6, 6, 0])))
    state.truth[:, row0:row1, col0:col1] = True
    planner = OraclePlanner(config, env.lattice)
    for _ in range(12):
        actions, *_ = planner.act(state, env.generator)
        env.step(state, actions, env.draw_step())
        if state.positions[0, 0].tolist() == [6, 6, 0]:
            break
    assert state.positions[0, 0].tolist() == [6, 6, 0]
    assert state.t.item() == 12


def test_two_oracles_share_the_work() -> None:
    """Two patches, as far from both UAVs: only the first one takes the larger."""
    config = small_config(agents=2, budget=3, dims=(50.0, 10.0), max_altitude=5.0, actions=4)
    env = MissionEnvironment(config, 1, "cpu", "test")
    state = env.reset(env.draw_reset())
    state.positions[0] = torch.tensor([[5, 0, 0], [5, 2, 0]])
    state.global_belief.fill_(0.5)
    state.truth.fill_(False)
    for x, missing in ((2, 0), (8, 2)):
        view = env.camera.footprint(torch.tensor([x, 1, 0]))
        row0, row1, col0, col1, *_ = (f.item() for f in view)
        state.truth[:, row0 : row1 - missing, col0:col1] = True
    planner = OraclePlanner(config, env.lattice)
    for _ in range(4):
        actions, *_ = planner.act(state, env.generator)
        env.step(state, actions, env.draw_step())
    assert state.positions[0].tolist() == [[2, 1, 0], [8, 1, 0]]
