"""What moves cost: which moves a UAV can pay for, and when it has flown its last one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.config.errors import ConfigError
from marl_framework.kernels import maps
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import action_offsets
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.task import MissionTask
from marl_framework.planners.registry import make_planner
from tests.small import small_config

COSTLY = {"horizontal": 1.0, "climb": 3.0, "descent": 0.5, "reading": 2.0}


def environment(limit: Any, num_envs: int = 6, actions: int = 6, **world: Any) -> Any:
    """Return missions in which moves cost, and their start."""
    cost = {**COSTLY, **world.pop("cost", {}), "limit": limit}
    constraints = {"cost": cost, **world.pop("constraints", {})}
    config = small_config(actions=actions, constraints=constraints, **world)
    env = MissionEnvironment(config, num_envs, "cpu")
    return env, env.reset()


def price(env: MissionEnvironment, action: int) -> float:
    """Return what a move costs, from its metres."""
    cost, metres = env.config.experiment.constraints.cost, 5.0
    dx, dy, dz = action_offsets(env.lattice.num_actions)[action]
    way = math.sqrt(dx**2 + dy**2) * metres * cost.horizontal
    up, down = max(dz, 0) * metres * cost.climb, max(-dz, 0) * metres * cost.descent
    return way + up + down + cost.reading


def affordable(
    env: MissionEnvironment, state: MissionState, spent: Any, e: int, n: int
) -> set[int]:
    """Return the moves on the lattice that a UAV can pay for, one by one."""
    found, place = set(), state.positions[e, n].tolist()
    left = float(state.limit[e, n]) - spent[e][n]
    for action, step in enumerate(action_offsets(env.lattice.num_actions)):
        goal = [a + b for a, b in zip(place, step, strict=True)]
        inside = all(0 <= g < size for g, size in zip(goal, env.lattice.shape, strict=True))
        if any(step) and inside and price(env, action) <= left + 1e-6:
            found.add(action)
    return found


@given(
    seed=st.integers(0, 2**16),
    limits=st.sampled_from([40.0, (31.0, 50.0, 90.0)]),
    actions=st.sampled_from([4, 6, 9, 27]),
    climb=st.sampled_from([0.0, 0.1, 3.0]),
)
@settings(max_examples=20)
def test_uavs_fly_what_they_can_pay_for_and_no_more(
    seed: int, limits: Any, actions: int, climb: float
) -> None:
    env, state = environment(limits, actions=actions, budget=30, seed=seed, cost={"climb": climb})
    generator = torch.Generator().manual_seed(seed)
    spent = [[0.0] * env.n_agents for _ in range(env.num_envs)]
    planner = make_planner("random", env)
    for _ in range(env.episode_length):
        options, before = env.lattice.options(state), state.clone()
        for e in range(env.num_envs):
            for n in range(env.n_agents):
                expected = affordable(env, state, spent, e, n)
                assert state.active[e, n] == bool(expected)
                if expected:
                    assert set(options[e, n].nonzero().flatten().tolist()) == expected
        flown, *_ = planner.act(state, generator)
        result = env.step(state, flown)
        stopped = ~before.active
        assert state.positions[stopped].equal(before.positions[stopped])
        assert state.beliefs[stopped].equal(before.beliefs[stopped])
        for e, n in before.active.nonzero().tolist():
            spent[e][n] += price(env, int(flown[e, n]))
        assert result.terminated.equal(~state.active.any(1))
        torch.testing.assert_close(state.limit - state.left, torch.tensor(spent).double())
    assert not state.active.any()
    assert (state.t < env.episode_length).any()  # the cost ended missions, not the moves


@pytest.mark.parametrize("policy", ["random", "coverage", "information_gain", "oracle"])
def test_with_enough_to_spend_missions_are_those_without_cost(policy: str) -> None:
    costly, state = environment(1e6)
    free = MissionEnvironment(small_config(), 6, "cpu")
    plain = free.reset(free.draw_reset())
    fliers = make_planner(policy, costly), make_planner(policy, free)
    generators = [torch.Generator().manual_seed(1) for _ in fliers]
    for _ in range(free.episode_length):
        theirs, *_ = fliers[0].act(state, generators[0])
        ours, *_ = fliers[1].act(plain, generators[1])
        assert theirs.equal(ours)
        found = costly.step(state, theirs, costly.draw_step())
        assert found.reward.equal(free.step(plain, ours, free.draw_step()).reward)
    assert state.beliefs.equal(plain.beliefs)


@pytest.mark.parametrize("policy", ["random", "coverage", "information_gain", "oracle"])
@pytest.mark.parametrize("zones", [False, True])
def test_planners_pay_for_their_moves(policy: str, zones: bool) -> None:
    constraints = {"obstacles": {"number": 2}} if zones else {}
    env, state = environment((21.0, 40.0), budget=9, constraints=constraints)
    planner, generator = make_planner(policy, env), torch.Generator().manual_seed(1)
    for _ in range(env.episode_length):
        actions, masks, *_ = planner.act(state, generator)
        chosen = masks.gather(2, actions.unsqueeze(2)).squeeze(2)
        assert chosen[state.active].all()
        env.step(state, actions)
        assert state.left.min() >= 0


def test_limits_are_drawn_for_each_uav() -> None:
    _, state = environment((30.0, 60.0), num_envs=50)
    assert set(state.limit.flatten().tolist()) == {30.0, 60.0}
    assert (state.limit[:, 0] != state.limit[:, 1]).any()


def test_a_high_limit_of_others_lets_nobody_spend_more() -> None:
    level = {"climb": 0.0, "descent": 0.0, "reading": 0.0}  # 5 a move
    env, state = environment((54.0, 1e9), actions=4, budget=20, cost=level)
    planner, generator = make_planner("random", env), torch.Generator().manual_seed(0)
    for _ in range(env.episode_length):
        env.step(state, planner.act(state, generator)[0])
        assert state.left.min() >= 0


def test_rounding_costs_no_move() -> None:
    tenths = {"horizontal": 0.06, "climb": 0.0, "descent": 0.0, "reading": 0.0}
    env, state = environment(1.5, num_envs=1, agents=1, actions=4, budget=20, cost=tenths)
    planner, generator = make_planner("random", env), torch.Generator().manual_seed(0)
    for _ in range(env.episode_length):
        env.step(state, planner.act(state, generator)[0])
    assert state.t.tolist() == [5]  # 0.3 each


def test_the_budget_map_shows_the_smaller_share() -> None:
    env, state = environment(100.0, budget=4)
    builder = ObservationBuilder(env.config, env.lattice, env.camera)
    at = builder.actor_channels.index("budget")
    state.t.fill_(1)
    state.left[0] = torch.tensor([90.0, 60.0, 15.0])
    shown = builder.actor(state)[0, :, at, 2, 3]
    torch.testing.assert_close(shown, torch.tensor([0.75, 0.6, 0.15]))
    state.active[0, 2] = False
    team = builder.team(state)[0, builder.team_channels.index("budget"), 2, 3]
    torch.testing.assert_close(team, torch.tensor(0.675))


def test_plain_operators_draw_missions_with_costs() -> None:
    configs = [small_config(constraints={"cost": {"limit": limit}}) for limit in (None, 50.0)]
    assert [maps.supports(config) for config in configs] == [True, False]


def test_moves_that_were_not_flown_are_not_learned_from() -> None:
    env, _ = environment((21.0, 60.0), budget=9)
    task = MissionTask(env)
    task.reset()
    flown = []
    for _ in range(env.episode_length):
        flown.append(task.active.clone())
        actions, _ = task.choose_in_order(lambda _, mask: mask.int().argmax(-1))
        reward, metrics = task.step(actions)
        assert metrics[:, 2:].sum(1).equal(flown[-1].sum(1).float())
        assert reward[~flown[-1].any(1)].eq(0).all()
    assert 0 < torch.stack(flown).float().mean() < 1


@pytest.mark.parametrize(
    ("limit", "cost", "said"),
    [
        (16.0, {}, r"constraints\.cost\.limit\b.*17"),
        ((90.0, 9.0), {}, r"constraints\.cost\.limit\b"),
        (5.0, dict.fromkeys(COSTLY, 0.0), r"constraints\.cost\b"),
    ],
)
def test_bad_costs_are_refused(limit: Any, cost: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        environment(limit, cost=cost)


@pytest.mark.parametrize("actions", [4, 6, 9, 27])
def test_level_moves_are_those_that_can_be_paid_for(actions: int) -> None:
    env, state = environment(36.0, actions=actions)
    paid = env.lattice.level_moves(state.left)
    assert paid is not None
    assert paid.unique().tolist() == [5]  # of 7 each
    assert env.lattice.level_moves(torch.tensor([0.5, 7.0, 13.9])).tolist() == [1, 1, 1]
    free = {"horizontal": 0.0, "reading": 0.0}
    env, state = environment(36.0, actions=27, cost=free)
    paid = env.lattice.level_moves(state.left)
    assert paid is not None
    assert paid.min() > env.episode_length
