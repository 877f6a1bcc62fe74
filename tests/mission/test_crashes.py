"""UAVs that crash on the way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners.registry import make_planner
from tests.small import random_actions, small_config


@given(
    seed=st.integers(0, 2**16),
    rate=st.sampled_from([0.2, (0.0, 0.5), 1.0]),
    agents=st.sampled_from([1, 4, (2, 5)]),
)
@settings(max_examples=15)
def test_who_flies_is_what_the_draws_say(
    seed: int, rate: float | tuple[float, ...], agents: int | tuple[int, ...]
) -> None:
    config = small_config(uav={"crash_rate": rate}, agents=agents, budget=4, seed=seed)
    env = MissionEnvironment(config, 5, "cpu")
    draws = env.draw_reset()
    state = env.reset(draws)
    flying = {(e, n) for e, n in state.active.nonzero().tolist()}
    assert len(flying) == state.team_size.sum()
    each = rate if isinstance(rate, tuple) else (rate,)
    drawn = [0] * 5 if draws.crash_rate is None else draws.crash_rate.tolist()
    rates = [each[k] for k in drawn]
    torch.testing.assert_close(state.crash_rate, torch.tensor(rates))
    for t in range(env.episode_length):
        before, step = state.clone(), env.draw_step()
        actions = random_actions(env, state, torch.Generator().manual_seed(seed + t))
        result = env.step(state, actions, step)
        assert step.crashes is not None
        for e in range(5):
            for n in range(env.n_agents):
                if (e, n) in flying:  # the last reading counts
                    assert state.readings[e, n].any()
                else:
                    assert state.positions[e, n].equal(before.positions[e, n])
                    assert state.beliefs[e, n].equal(before.beliefs[e, n])
                    assert state.heard[e, :, n].sum() == state.heard[e, n].sum() == 1
            if not any((e, n) in flying for n in range(env.n_agents)):
                assert result.reward[e] == 0
                assert state.t[e] == before.t[e]
        last = t + 1 == env.episode_length
        flying = {
            (e, n) for e, n in flying if not last and float(step.crashes[e, n]) >= rates[e] - 1e-7
        }
        assert {(e, n) for e, n in state.active.nonzero().tolist()} == flying
        assert result.terminated.tolist() == [
            not any((e, n) in flying for n in range(env.n_agents)) for e in range(5)
        ]


def test_uavs_crash_as_often_as_asked() -> None:
    config = small_config(uav={"crash_rate": 0.2}, agents=4, budget=2, pixels=(6, 6))
    env = MissionEnvironment(config, 1000, "cpu")
    state = env.reset()
    left = [state.active.double().mean().item()]
    for _ in range(2):
        env.step(state, random_actions(env, state, torch.Generator()))
        left.append(state.active.double().mean().item())
    assert left == pytest.approx([1, 0.8, 0.64], abs=0.03)  # four standard deviations


def test_nothing_more_is_drawn_where_nobody_crashes() -> None:
    boxes, envs = {"obstacles": {"number": 2}}, []
    for rate in (0.0, 0.1):
        uav = {"crash_rate": rate, "failure_rate": (0.0, 0.5)}
        envs.append(MissionEnvironment(small_config(uav=uav, constraints=boxes), 3, "cpu"))
    plain, crashing = (env.draw_reset() for env in envs)
    assert envs[0].draw_step().crashes is None
    assert envs[1].draw_step().crashes is not None
    assert not envs[0].has_inactive
    states = envs[0].reset(plain), envs[1].reset(crashing)
    for name, tensor in states[0].tensors():  # the same missions until the first move
        assert name == "crash_rate" or tensor.equal(getattr(states[1], name)), name


def test_the_others_keep_their_ids() -> None:
    config = small_config(uav={"crash_rate": 0.5}, agents=(2, 4), budget=3)
    env = MissionEnvironment(config, 6, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    at = builder.actor_channels.index("agent_id")
    state = env.reset()
    for _ in range(3):
        env.step(state, random_actions(env, state, torch.Generator()))
        ids = builder.actor(state)[:, :, at, 0, 0]
        for e, n in state.active.nonzero().tolist():
            assert float(ids[e, n]) == pytest.approx((n + 1) / int(state.team_size[e]))
    assert 0 < state.active.sum() < state.team_size.sum()


def test_those_who_heard_the_last_message_know_that_it_was_the_last() -> None:
    config = small_config(
        uav={"crash_rate": 0.4, "communication_range": 12.0},
        agents=4,
        budget=4,
        observation={"heard_uavs": True},
        networks={"actor": {"type": "attention"}, "critic": {"type": "attention"}},
    )
    env = MissionEnvironment(config, 8, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    state, generator = env.reset(), torch.Generator().manual_seed(1)
    planner, kept = make_planner("search", env), 0
    for _ in range(3):
        planner.act(state, generator)
        env.step(state, random_actions(env, state, generator))
        heard, flies = state.heard.clone(), state.active
        planner.act(state, generator)
        shown = builder.actor(state)
        state.heard.logical_and_(flies.unsqueeze(1) | torch.eye(4, dtype=torch.bool))
        seen = builder.actor(state)
        state.heard.copy_(heard)
        assert shown[flies].equal(seen[flies])  # as if it had not been heard
        for e, i, j in heard.nonzero().tolist():
            if flies[e, i] and not flies[e, j]:
                assert (planner._plans[e, i, j] == 1).all()  # it removes nothing any more
                kept += 1
    assert kept > 5


@pytest.mark.parametrize("policy", ["random", "coverage", "information_gain", "oracle", "search"])
def test_planners_of_a_mission_go_on_without_those_that_crash(policy: str) -> None:
    config = small_config(uav={"crash_rate": 0.3}, agents=(2, 4), budget=5)
    env = MissionEnvironment(config, 6, "cpu")
    state, generator = env.reset(), torch.Generator().manual_seed(1)
    planner, crashed = make_planner(policy, env), False
    for _ in range(env.episode_length):
        decision = planner.act(state, generator)
        allowed = decision.masks.gather(2, decision.actions.unsqueeze(2)).squeeze(2)
        assert allowed[state.active].all()
        env.step(state, decision.actions)
        crashed |= bool((state.active.any(1) & (state.active.sum(1) < state.team_size)).any())
    assert crashed
