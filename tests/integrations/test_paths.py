"""Paths of other libraries are flown on the lattice, within the budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.integrations.paths import PathPlanner, Points, lattice_path
from marl_framework.mission.environment import MissionEnvironment
from tests.small import small_config

COORDINATES = st.sampled_from([k / 10 for k in range(-30, 90) if k % 10 != 5])  # no ties


class Lanes(PathPlanner):
    """Each UAV flies along y, on a lane of its own."""

    calls: list[tuple[Points, int, int]]

    def plan(self, starts: Points, moves: int, seed: int) -> Points:
        self.calls = [*getattr(self, "calls", []), (starts, moves, seed)]
        ends = starts + np.array([0, 6]) * np.where(starts[:, 1:] < 3, 1, -1)
        return np.stack((starts, ends), axis=1)


def environment(config: Config, missions: int = 4) -> MissionEnvironment:
    return MissionEnvironment(config, missions, "cpu", "test")


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.just(2)), elements=COORDINATES))
def test_a_path_steps_through_the_cells_nearest_to_its_waypoints(waypoints: Points) -> None:
    shape = (7, 5)
    nearest = [
        tuple(
            min(range(size), key=lambda k: abs(k - value))
            for size, value in zip(shape, point, strict=True)
        )
        for point in waypoints.tolist()
    ]
    length = sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise(nearest))
    path = lattice_path(waypoints, shape, length + 3)
    assert len(path) == length + 4
    assert path[0] == nearest[0]
    for (x, y), (u, v) in pairwise(path):
        assert abs(x - u) + abs(y - v) == 1
        assert 0 <= u < shape[0]
        assert 0 <= v < shape[1]
    rest = iter(path[: length + 1])
    assert all(cell in rest for cell in dict.fromkeys(nearest))  # in this order
    assert path[length] == nearest[-1]
    assert lattice_path(waypoints, shape, 2) == path[:3]


@pytest.mark.parametrize(("actions", "descents"), [(4, 0), (6, 2), (9, 0), (27, 2)])
def test_uavs_descend_and_then_fly_the_planned_paths(actions: int, descents: int) -> None:
    env = environment(small_config(agents=2, actions=actions, missions={"start": "corners"}))
    planner = Lanes(env)
    state = env.reset()
    starts = state.positions.clone()
    for t in range(env.episode_length):
        decision = planner.act(state, env.generator)
        env.step(state, decision.actions)
        along = (state.positions - starts).abs()
        assert (along[..., 2] == min(t + 1, descents)).all()
        assert (along[..., 1] == max(t + 1 - descents, 0)).all()
        assert (along[..., 0] == 0).all()
    assert len(planner.calls) == 4  # once for each mission
    for e, (begin, moves, _) in enumerate(planner.calls):
        assert begin.tolist() == starts[e, :, :2].tolist()
        assert moves == env.episode_length - descents
    assert len({seed for *_, seed in planner.calls}) == 4


def test_teams_and_budgets_may_differ_and_the_next_missions_have_new_paths() -> None:
    config = small_config(constraints={"budget": (3, 6)}, missions={"n_agents": (1, 3)})
    env = environment(config, 16)
    planner = Lanes(env)
    for batch in (1, 2):
        state = env.reset()
        sizes, moves = state.team_size.tolist(), (state.budget + 1 - 2).tolist()
        for _ in range(env.episode_length):
            actions, masks, *_ = planner.act(state, env.generator)
            assert (masks.gather(2, actions.unsqueeze(2)).squeeze(2) | ~state.active).all()
            env.step(state, actions)
        calls = planner.calls[-16:]
        assert len(planner.calls) == 16 * batch
        assert [(len(starts), number) for starts, number, _ in calls] == list(
            zip(sizes, moves, strict=True)
        )
        assert set(sizes) == {1, 3}


def test_two_uavs_with_one_path_never_share_a_cell() -> None:
    class Same(PathPlanner):
        def plan(self, starts: Points, moves: int, seed: int) -> Points:
            return np.stack((starts, np.full_like(starts, 3.0)), axis=1)

    env = environment(small_config(budget=9), 8)
    planner = Same(env)
    state = env.reset()
    for _ in range(env.episode_length):
        env.step(state, planner.act(state, env.generator).actions)
        cells = env.lattice.cells(state.positions).sort(dim=1).values
        assert (cells.diff(dim=1) > 0).all()


def test_a_budget_below_the_descent_needs_no_path() -> None:
    env = environment(small_config(budget=1, max_altitude=20.0))
    planner = Lanes(env)
    state = env.reset()
    for _ in range(env.episode_length):
        env.step(state, planner.act(state, env.generator).actions)
    assert (state.positions[..., 2] == 1).all()
    assert not hasattr(planner, "calls")  # there is nothing to plan


def test_zones_are_refused() -> None:
    config = small_config(constraints={"obstacles": {"number": 1}})
    with pytest.raises(ConfigError, match=r"planner: paths: .*no_fly_zones"):
        Lanes(environment(config))


def test_sgp_tools_plans_within_the_budget_and_over_the_area() -> None:
    pytest.importorskip("sgptools", reason="SGP-Tools is not installed: it requires numpy below 2")
    from marl_framework.integrations.sgptools import SGPPlanner

    planner = SGPPlanner(environment(small_config(budget=11), 1))
    starts = np.array([[0.0, 0.0], [6.0, 6.0], [6.0, 0.0]])
    waypoints = planner.plan(starts, 10, 1)
    assert waypoints.shape == (3, 11, 2)
    np.testing.assert_array_equal(waypoints[:, 0], starts)
    lengths = np.abs(np.diff(waypoints, axis=1)).sum((1, 2))
    assert (lengths < 11).all()
    places = np.stack(np.meshgrid(*[np.arange(7)] * 2), -1).reshape(-1, 1, 2)
    nearest = np.abs(places - waypoints.reshape(-1, 2)).max(-1).min(1)
    assert (nearest <= 1).mean() > 0.6
    np.testing.assert_array_equal(planner.plan(starts, 10, 1), waypoints)
