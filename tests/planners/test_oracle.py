"""The oracle, a planner that sees the truth, uses what it sees."""

from __future__ import annotations

import pytest
import torch

from marl_framework.evaluation.flight import evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from tests.planners.missions import in_view
from tests.small import small_config


def test_planners_are_better_the_more_they_know() -> None:
    env = MissionEnvironment(small_config(dims=(50.0, 50.0), agents=4, budget=14), 20, "cpu")
    names = ("oracle", "information_gain", "coverage", "random")
    flown = [evaluate(env, make_planner(name, env), 20, 10001).metrics for name in names]
    left = [metrics["roi_entropy"][:, -1].mean().item() for metrics in flown]
    assert left == sorted(left)
    assert left[1] - left[0] > 0.05
    f1 = [metrics["f1"][:, -1].mean() for metrics in flown]
    assert f1[0] == max(f1)


@pytest.mark.parametrize(
    ("dims", "starts", "patches", "ends"),
    [
        # Straight to what only the truth shows.
        ((50.0, 50.0), [[0, 0, 0]], [(6, 6, 0, 0)], [[6, 6, 0]]),
        # Two patches, as far from both UAVs: only the first UAV takes the larger one.
        (
            (50.0, 10.0),
            [[5, 0, 0], [5, 2, 0]],
            [(2, 1, 0, 0), (8, 1, 0, 2)],
            [[2, 1, 0], [8, 1, 0]],
        ),
    ],
)
def test_it_flies_to_patches_and_shares_them(
    dims: tuple[float, float],
    starts: list[list[int]],
    patches: list[tuple[int, int, int, int]],
    ends: list[list[int]],
) -> None:
    budget = 11 if len(starts) == 1 else 3
    config = small_config(agents=len(starts), budget=budget, dims=dims, max_altitude=5.0, actions=4)
    env = MissionEnvironment(config, 1, "cpu", "test")
    state = env.reset(env.draw_reset())
    state.positions[0] = torch.tensor(starts)
    state.global_belief.fill_(0.5)
    state.truth.fill_(False)
    for *position, missing in patches:
        rows, cols = in_view(env, *position)
        state.truth[:, rows.start : rows.stop - missing, cols] = True
    planner = make_planner("oracle", env)
    for _ in range(env.episode_length):
        env.step(state, planner.act(state, env.generator).actions, env.draw_step())
    assert state.positions[0].tolist() == ends
