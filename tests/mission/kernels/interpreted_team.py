"""The Triton kernels of observations and actions, interpreted on the CPU, against their twins.

Not collected by itself: Triton decides when it is imported whether it interprets, so that
`test_triton_team.py` runs this file in a process of its own with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import os
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from marl_framework.algorithms.policy import policy_probabilities, sample_actions
from marl_framework.algorithms.rollout import draw_one_by_one
from marl_framework.config.learning import ObservationConfig
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import TritonFusion
from marl_framework.mission.kernels import part_operators, team_operators
from marl_framework.mission.kernels.cpu import part_sums
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.kernels import (
    DRAWN_BY_OPERATORS,
    ActionKernel,
    TritonBuilder,
)
from tests.mission.asymmetric import ASYMMETRIC
from tests.mission.mixed import fly_and_compare, mixed_environment
from tests.small import small_config

assert os.environ.get("TRITON_INTERPRET") == "1"

MISSIONS = 2
CHANNELS = set(ObservationConfig.model_fields) - {"heard_uavs"}
ALL = {name: name not in DRAWN_BY_OPERATORS for name in CHANNELS}
MIXED = dict.fromkeys(CHANNELS, True)
SOME = ALL | dict.fromkeys(("budget", "entropy", "footprint", "global_entropy"), False)
ROUNDED = {"entropy", "local_entropy", "footprint"}
"""Logarithms and sums of products; all other channels are exact."""
WORLDS: list[dict[str, Any]] = [
    {"agents": 3, "observation": ALL, "sensor": ASYMMETRIC, "dims": (30.0, 20.0)},
    {"agents": 2, "observation": SOME, "dims": (80.0, 10.0), "pixels": (6, 6)},  # 17 rows
    {"agents": 8, "observation": ALL, "dims": (10.0, 15.0)},  # more than 16 strips
    {"agents": (1, 3), "observation": MIXED, "dims": (30.0, 20.0), "uav": {"crash_rate": 0.1}},
]


@cache
def world(index: int) -> MissionEnvironment:
    config = small_config(compute={"compile": False}, **WORLDS[index])
    return MissionEnvironment(config, MISSIONS, "cpu")


def random_positions(env: MissionEnvironment, generator: torch.Generator) -> Tensor:
    """Return positions anywhere, often in one place or at the edge."""
    shape = (MISSIONS, env.n_agents, 3)
    size = torch.tensor(env.lattice.shape)
    anywhere = (torch.rand(shape, generator=generator) * size).long()
    near = torch.rand(MISSIONS, 1, 1, generator=generator) < 0.5
    return torch.where(near, anywhere.clamp(max=1), anywhere)


def random_state(env: MissionEnvironment, generator: torch.Generator) -> MissionState:
    """Return missions whose pooled maps may hold anything."""
    state = env._empty_state()
    state.positions.copy_(random_positions(env, generator))
    for name in ("pooled_beliefs", "pooled_global"):
        maps = getattr(state, name)
        maps.uniform_(-1e-6, 1 + 1e-6, generator=generator)
        maps[torch.rand(maps.shape, generator=generator) < 0.2] = 0.5
    state.pooled_readings.uniform_(-1, 1, generator=generator)
    for maps in (state.pooled_uncertainty, state.pooled_global_uncertainty):
        maps.uniform_(-1e-3, 1.001, generator=generator)
    share = torch.rand(state.open_share.shape, generator=generator)
    state.open_share = share if share[0, 0, 0] < 0.5 else share[:1].expand_as(share)
    heard = torch.rand(state.heard.shape, generator=generator) < 0.6
    state.t.random_(0, env.episode_length, generator=generator)
    if env.has_inactive:
        state.active.copy_(torch.rand(state.active.shape, generator=generator) < 0.7)
        state.team_size.random_(1, env.n_agents + 1, generator=generator)
    state.heard.copy_(heard | torch.eye(env.n_agents, dtype=torch.bool))
    return state


@given(index=st.integers(0, len(WORLDS) - 1), seed=st.integers(0, 2**30))
@example(index=0, seed=0)
@example(index=1, seed=1)
@example(index=2, seed=2)
@example(index=3, seed=3)
@example(index=3, seed=8)  # a UAV heard before it crashed would change a footprint
@settings(max_examples=1, suppress_health_check=list(HealthCheck), deadline=None)
def test_maps_are_those_of_the_builder(index: int, seed: int) -> None:
    env = world(index)
    generator = torch.Generator().manual_seed(seed)
    state = random_state(env, generator)
    twin, kernels = (
        kind(env.config, env.lattice, env.camera) for kind in (ObservationBuilder, TritonBuilder)
    )
    actions = torch.randint(env.lattice.num_actions, state.positions.shape[:2], generator=generator)
    own = twin.critic_channels[len(twin.actor_channels) :]
    for names, found, expected in (
        (twin.actor_channels, kernels.actor(state), twin.actor(state)),
        (own, kernels.critic_only(state, actions), twin.critic_only(state, actions)),
    ):
        assert found.shape == expected.shape
        for k, name in enumerate(names):
            rounded = name.removeprefix("centred_").removeprefix("global_") in ROUNDED
            torch.testing.assert_close(
                found[state.active][:, k],  # what the others are shown does not matter
                expected[state.active][:, k],
                rtol=0.0,
                atol=4e-7 if rounded else 0.0,
                msg=lambda m, name=name: f"{name}: {m}",
            )


@pytest.mark.parametrize("heard", [False, True])
def test_maps_go_into_memory_that_is_given(heard: bool) -> None:
    config = small_config(
        agents=3,
        observation=MIXED | {"heard_uavs": heard},
        networks=dict.fromkeys(("actor", "critic"), {"type": "attention"} if heard else {}),
        compute={"compile": False},
    )
    env = MissionEnvironment(config, MISSIONS, "cpu")
    state = random_state(env, torch.Generator().manual_seed(0))
    actions = torch.ones(state.positions.shape[:2], dtype=torch.int64)
    for kind in (TritonBuilder, ObservationBuilder):
        builder = kind(config, env.lattice, env.camera)
        for draw in (builder.actor, lambda *a, b=builder: b.critic_only(a[0], actions, *a[1:])):
            maps = draw(state)
            steps = torch.full((3, *maps.shape), 7.0, dtype=torch.bfloat16)
            assert draw(state, steps[1]) is not None
            torch.testing.assert_close(steps[1].float(), maps, rtol=2**-7, atol=0)
            assert (steps[::2] == 7).all()


def test_memory_in_another_order_is_refused() -> None:
    env = world(0)
    state = random_state(env, torch.Generator().manual_seed(0))
    builder = TritonBuilder(env.config, env.lattice, env.camera)
    maps = builder.actor(state)
    with pytest.raises(ValueError, match="one after the other"):
        builder.actor(state, maps.transpose(3, 4).contiguous().transpose(3, 4))


@given(
    ends=st.tuples(*[st.lists(st.integers(1, 40), min_size=1, max_size=6).map(sorted)] * 2),
    maps=st.integers(1, 3),
    seed=st.integers(0, 2**30),
)
@example(ends=([33], [33, 33, 40]), maps=2, seed=0)  # more than two tiles; nothing in the second
@settings(max_examples=5, suppress_health_check=list(HealthCheck), deadline=None)
def test_sums_over_parts_are_those_of_the_loops(
    ends: tuple[list[int], list[int]], maps: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    beliefs = torch.rand(maps, ends[0][-1], ends[1][-1], generator=generator)
    beliefs = torch.where(beliefs < 0.1, 0.0, beliefs)  # H is that of the least probability
    row_ends, col_ends = map(torch.tensor, ends)
    found = part_operators.sum_parts(beliefs, row_ends, col_ends)
    expected = part_sums(beliefs, row_ends, col_ends)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    cells = beliefs.double().clamp(1e-4, 1 - 1e-4)
    entropy = -(cells * cells.log2() + (1 - cells) * (1 - cells).log2())
    for k, plane in enumerate((beliefs, entropy, beliefs * entropy)):
        total = plane.double().sum((1, 2)).float()
        torch.testing.assert_close(found[:, k].sum((1, 2)), total, rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, which interprets
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_lead_nowhere_else(wrong: float) -> None:
    env = world(0)
    generator = torch.Generator().manual_seed(0)
    state = random_state(env, generator)
    shape = (MISSIONS, env.n_agents, env.lattice.num_actions)
    logits = torch.zeros(shape)
    logits[0] = wrong
    logits[1, :, 2] = wrong
    task = SimpleNamespace(
        choose_in_order=lambda choose: env.lattice.choose_in_missions(state, choose)
    )
    for draw in (ActionKernel(env.lattice, lambda: state), partial(draw_one_by_one, task)):
        actions = torch.zeros(shape[:2], dtype=torch.int64)
        masks, probabilities = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
        floor = torch.zeros((), dtype=torch.float64)
        uniform = torch.rand(shape, generator=generator)
        draw(logits, uniform, floor, actions, masks, probabilities)
        assert masks.gather(2, actions.unsqueeze(2)).all()


@pytest.mark.parametrize("actions", [4, 6, 27])
@given(
    seed=st.integers(0, 2**30),
    epsilon=st.sampled_from([0.0, 0.1, 1.0]),
    agents=st.sampled_from([1, 3, 7]),
    missions=st.sampled_from([1, 17]),
    zones=st.booleans(),
)
@settings(max_examples=3, suppress_health_check=list(HealthCheck), deadline=None)
def test_actions_are_those_drawn_one_by_one(
    actions: int, seed: int, epsilon: float, agents: int, missions: int, zones: bool
) -> None:
    config = small_config(
        agents=(1, agents) if agents > 1 else 1,
        actions=actions,
        dims=(10.0, 15.0),
        max_altitude=10.0,
    )
    lattice = Lattice(config, "cpu")
    generator = torch.Generator().manual_seed(seed)
    shape = (missions, agents, actions)
    active = (torch.rand(shape[:2], generator=generator) < 0.7) | (agents == 1)
    positions = (
        torch.rand(*shape[:2], 3, generator=generator) * torch.tensor(lattice.shape)
    ).long()
    moves = lattice.table().expand(missions, *lattice.shape, actions)
    if zones:  # a table for each mission; one move stays, as everywhere in a mission
        moves = moves & (torch.rand(moves.shape, generator=generator) < 0.7)
        moves |= lattice.table() & (lattice.table().cumsum(-1) == 1)
    logits = torch.randn(shape, generator=generator) * 5
    uniform = torch.rand(shape, generator=generator)
    uniform[torch.rand(shape, generator=generator) < 0.05] = 0.0
    found = torch.zeros(shape[:2], dtype=torch.int64)
    masks, probabilities = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    floor = torch.tensor(epsilon, dtype=torch.float64)
    state: Any = SimpleNamespace(positions=positions, moves=moves, active=active)
    given = torch.cat((logits, logits), -1)[..., :actions]  # as a network of one's own may
    ActionKernel(lattice, lambda: state)(given, uniform, floor, found, masks, probabilities)

    def choose(i: int, mask: Tensor) -> Tensor:
        assert masks[:, i].equal(mask)  # under the actions that the kernel chose
        policy = policy_probabilities(logits[:, i], mask, epsilon)
        torch.testing.assert_close(probabilities[:, i], policy, rtol=1e-6, atol=1e-7)
        assert (probabilities[:, i] > 0)[~mask].sum() == 0
        # Rounded as the kernel has: the race then has the same winner.
        return found[:, i]

    lattice.choose_in_order(positions, choose, lattice.allowed(positions, moves), active)
    chance = probabilities.gather(2, found.unsqueeze(2)).squeeze(2)
    assert (chance > 0).all()
    best = sample_actions(probabilities, uniform, torch.ones_like(masks))
    assert (best == found).double().mean() > 0.99  # ties within a rounding


def test_operators_keep_the_promises_of_their_schemas() -> None:
    env = world(0)
    state = random_state(env, torch.Generator().manual_seed(0))
    builder = TritonBuilder(env.config, env.lattice, env.camera)
    shape = (MISSIONS, env.n_agents, env.lattice.num_actions)
    actions = torch.zeros(shape[:2], dtype=torch.int64)
    calls: list[tuple[str, tuple[Any, ...]]] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> Any:
                calls.append((name, arguments))
                return getattr(team_operators, name)(*arguments)

            return call

    choosing = ActionKernel(env.lattice, lambda: state)
    builder._operators = choosing._operators = Recorder()  # type: ignore[assignment]
    builder.actor(state)
    builder.critic_only(state, actions)
    choosing(
        torch.zeros(shape),
        torch.rand(shape),
        torch.zeros((), dtype=torch.float64),
        actions,
        torch.zeros(shape, dtype=torch.bool),
        torch.zeros(shape),
    )
    assert [name for name, _ in calls] == ["draw_actor_maps", "draw_critic_maps", "choose_actions"]
    calls.append(("sum_parts", (torch.rand(2, 5, 4), torch.tensor([2, 5]), torch.tensor([4]))))
    for name, arguments in calls:
        torch.library.opcheck(
            getattr(torch.ops.marl_framework, name).default,
            arguments,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


def test_each_mission_of_a_batch_is_that_mission_alone() -> None:
    def prepare(env: MissionEnvironment) -> TritonBuilder:
        env._fusion = TritonFusion(env.config, env.camera)
        return TritonBuilder(env.config, env.lattice, env.camera)

    world: dict[str, Any] = {"compute": {"compile": False}, "dims": (10.0, 15.0)}
    env = mixed_environment(3, prepare, agents=(1, 3), budget=(1, 2), pixels=(6, 6), **world)
    fly_and_compare(env, prepare, seed=2)
