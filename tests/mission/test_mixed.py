"""Missions of different teams and budgets in one batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from tests.mission import mixed
from tests.mission.mixed import choose, fly_and_compare, mixed_environment, part
from tests.small import small_config


def prepare(env: MissionEnvironment) -> ObservationBuilder:
    return ObservationBuilder(env.config, env.lattice, env.camera)


@pytest.mark.parametrize("compiled", [False, True])
@given(
    seed=st.integers(0, 2**20 - 1),
    sizes=st.sampled_from([(1, 2), (2, 4, 8), (3, 8), (5, 16)]),
    budgets=st.sampled_from([2, (1, 3), (1, 2, 4)]),
    start=st.sampled_from(["random", "corners", "published"]),
    actions=st.sampled_from([4, 6, 27]),
    failure_rate=st.sampled_from([0.0, 0.3]),
    crash_rate=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=4)
@example(0, (3, 8), 3, "random", 6, 0.0, 0.0)
@example(1, (2, 4, 8), (2, 4), "random", 6, 0.0, 0.3)
def test_each_mission_of_a_batch_is_that_mission_alone(
    compiled: bool, seed: int, sizes: Any, budgets: Any, start: str, actions: int,
    failure_rate: float, crash_rate: float,
) -> None:  # fmt: skip
    env = mixed_environment(
        4,
        prepare,
        agents=sizes,
        budget=budgets,
        actions=actions,
        uav={"failure_rate": failure_rate, "crash_rate": crash_rate},
        missions={"start": start},
        compute={"compile": compiled},
    )
    assert (env.fusion.version is Version.LOOPS) == compiled
    fly_and_compare(env, prepare, seed)


@pytest.mark.parametrize("start", ["random", "corners", "published"])
def test_obstacles_leave_out_only_those_near_uavs_that_fly(start: str) -> None:
    env = mixed_environment(
        6,
        prepare,
        agents=(1, 8),
        budget=2,
        missions={"start": start},
        constraints={"obstacles": {"number": 8}},
    )
    fly_and_compare(env, prepare, 5)
    draws = env.draw_reset()
    state = env.reset(draws)
    kept = ~env.obstacles.boxes(draws.boxes, state.positions)[..., 4].isnan()
    alone, together = (kept[state.active.sum(1) == size].double().mean() for size in (1, 8))
    assert alone > together + 0.1
    assert env.lattice.options(state).any(-1).all()  # also of those that do not fly


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("gone", [[0], [1, 3], [0, 2, 4]])
def test_uavs_that_drop_out_leave_the_mission_of_the_others(
    compiled: bool, gone: list[int]
) -> None:
    env = mixed_environment(3, prepare, agents=(4, 5), budget=6, compute={"compile": compiled})
    builder, generator = prepare(env), torch.Generator().manual_seed(1)
    draws = env.draw_reset()
    assert draws.team is not None
    draws.team.fill_(1)  # all fly
    state = env.reset(draws)
    team = torch.tensor([i for i in range(5) if i not in gone])
    state.active[:, gone] = False
    state.heard.copy_(env.radio.hear(state, torch.zeros_like(state.heard)))
    single, own_builder = mixed.alone(env, len(team), 6, prepare)
    own = part(state, 1, team)
    for _ in range(env.episode_length):
        keys = torch.rand(3, 5, env.lattice.num_actions, generator=generator)
        others = single, own_builder, own  # a smaller team from the start has other ids
        mixed.assert_same_mission(env, builder, state, 1, team, others, keys, but="agent_id")
        stayed, step = state.positions[:, gone].clone(), env.draw_step()
        actions, own_actions = choose(env, state, keys)[0], choose(single, own, keys[1:2, team])[0]
        result = env.step(state, actions, step)
        expected = single.step(own, own_actions, mixed.of_mission(step, 1, team))
        mixed.same(result.reward[1:2], expected.reward, "reward")
        assert state.positions[:, gone].equal(stayed)
        assert not state.readings[:, gone].any()
        assert not state.pooled_readings[:, gone].any()
        assert state.heard[:, gone].sum() == len(gone) * 3  # themselves


def test_teams_budgets_and_ranges_are_all_drawn() -> None:
    ranges = {0.0, 15.0, 25.0, 100.0}
    uav = {"communication_range": tuple(ranges)}
    env = mixed_environment(200, prepare, agents=(2, 3, 5), budget=(1, 4), uav=uav)
    state = env.reset()
    assert set(state.active.sum(1).tolist()) == {2, 3, 5}
    assert set(state.budget.tolist()) == {1, 4}
    assert set(state.communication_range.tolist()) == ranges
    assert state.active.int().diff(dim=1).le(0).all()  # the first UAVs fly


def test_only_lists_draw_more() -> None:
    plain = MissionEnvironment(small_config(agents=3), 2, "cpu")
    lists = mixed_environment(2, prepare, agents=(2, 3), budget=4)
    ours, theirs = lists.draw_reset(), plain.draw_reset()
    assert [theirs.team, theirs.budget, ours.budget] == [None] * 3
    for name in ("start", "range_choice"):
        assert getattr(ours, name).equal(getattr(theirs, name))
    assert ours.first.sensor.equal(theirs.first.sensor)
    torch.testing.assert_close(ours.terrain.numbers, theirs.terrain.numbers, rtol=0, atol=0)


def test_a_mission_starts_anew_while_others_go_on() -> None:
    env = mixed_environment(6, prepare, agents=(1, 3), budget=(1, 5))
    state = env.reset()
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        keys = torch.rand(6, 3, env.lattice.num_actions, generator=generator)
        over = env.step(state, choose(env, state, keys)[0]).terminated
    assert 0 < over.sum() < 6
    before = state.clone()
    env.reset(state=state, mask=over)
    assert state.active.any(1).all()
    assert state.t.equal(torch.where(over, 0, 2))
    assert state.beliefs[~over].equal(before.beliefs[~over])
    assert state.active[~over].equal(before.active[~over])
