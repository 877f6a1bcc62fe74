"""The Triton kernels of maps, actions and sums, interpreted on the CPU, against plain operators.

Not collected: `test_triton.py` runs this file with `TRITON_INTERPRET=1`.
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
from marl_framework.kernels.cells import part_sums
from marl_framework.kernels.policies import choose_actions
from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import Fusion
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.channels import CHANNELS
from tests.mission.asymmetric import ASYMMETRIC
from tests.mission.mixed import fly_and_compare, mixed_environment
from tests.small import small_config

assert os.environ.get("TRITON_INTERPRET") == "1"

MISSIONS = 2
QUIET = list(HealthCheck)
ALL = {name: row.in_kernel for name, row in CHANNELS.items()}
MIXED = dict.fromkeys(CHANNELS, True)
WINDOW = {"window": 5, "other_actions": False, "centred_other_actions": True}
SOME = ALL | dict.fromkeys(("budget", "entropy", "footprint", "global_entropy"), False)
ROUNDED = {"entropy", "local_entropy", "footprint"}
"""Logarithms and sums of products; all other channels are exact."""
WORLDS: list[dict[str, Any]] = [
    {"agents": 3, "observation": ALL, "sensor": ASYMMETRIC, "dims": (30.0, 20.0)},
    {"agents": 2, "observation": SOME, "dims": (80.0, 10.0), "pixels": (6, 6)},  # 17 rows
    {"agents": 8, "observation": ALL, "dims": (10.0, 15.0)},  # more than 16 strips
    {"agents": (1, 3), "observation": MIXED, "dims": (30.0, 20.0), "uav": {"crash_rate": 0.1}},
    {"agents": 3, "observation": ALL | WINDOW, "dims": (40.0, 20.0)},
    {"agents": 32, "observation": ALL, "dims": (30.0, 25.0)},  # more footprints than kernels draw
    {"agents": 2, "observation": ALL, "dims": (10.0, 170.0), "pixels": (6, 6)},  # 35 columns
    {"agents": 4, "observation": MIXED | WINDOW, "dims": (90.0, 170.0), "pixels": (6, 6)},  # tiles
]


@cache
def world(index: int) -> MissionEnvironment:
    config = small_config(compute={"compile": False}, **WORLDS[index])
    return MissionEnvironment(config, MISSIONS, "cpu")


def builders(env: MissionEnvironment) -> list[ObservationBuilder]:
    """Return the plain builder, and that of the kernels."""
    return [
        ObservationBuilder(env.config, env.lattice, env.camera, version)
        for version in (Version.PLAIN, Version.TRITON)
    ]


def random_state(env: MissionEnvironment, generator: torch.Generator) -> MissionState:
    """Return missions with any pooled maps, at any positions, often the same or at the edge."""
    state = env.empty_state()
    anywhere = torch.rand(state.positions.shape, generator=generator)
    anywhere = (anywhere * torch.tensor(env.lattice.shape)).long()
    near = torch.rand(MISSIONS, 1, 1, generator=generator) < 0.5
    state.positions.copy_(torch.where(near, anywhere.clamp(max=1), anywhere))
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
@example(index=4, seed=4)
@example(index=5, seed=5)
@example(index=6, seed=6)
@example(index=7, seed=7)
@example(index=3, seed=8)  # a UAV heard before it crashed would change a footprint
@settings(max_examples=1, suppress_health_check=QUIET)
def test_maps_are_those_of_plain_operators(index: int, seed: int) -> None:
    env = world(index)
    generator = torch.Generator().manual_seed(seed)
    state = random_state(env, generator)
    plain, kernels = builders(env)
    actions = torch.randint(env.lattice.num_actions, state.positions.shape[:2], generator=generator)
    own = plain.critic_channels[len(plain.actor_channels) :]
    for names, found, expected in (
        (plain.actor_channels, kernels.actor(state), plain.actor(state)),
        (own, kernels.critic_only(state, actions), plain.critic_only(state, actions)),
    ):
        assert found.shape == expected.shape
        for k, name in enumerate(names):
            rounded = name.removeprefix("centred_").removeprefix("global_") in ROUNDED
            ours, theirs = (maps[state.active][:, k] for maps in (found, expected))  # others unused
            off = 4e-7 if rounded or env.config.observation.window else 0.0
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=off, msg=name)


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
    for builder in builders(env):
        for draw in (builder.actor, lambda *a, b=builder: b.critic_only(a[0], actions, *a[1:])):
            maps = draw(state)
            steps = torch.full((3, *maps.shape), 7.0, dtype=torch.bfloat16)
            assert draw(state, steps[1]) is not None
            torch.testing.assert_close(steps[1].float(), maps, rtol=2**-7, atol=0)
            assert (steps[::2] == 7).all()


def test_memory_in_another_order_is_refused() -> None:
    env = world(0)
    state = random_state(env, torch.Generator().manual_seed(0))
    _, builder = builders(env)
    maps = builder.actor(state)
    with pytest.raises(ValueError, match=r"^out:"):
        builder.actor(state, maps.transpose(3, 4).contiguous().transpose(3, 4))


@given(
    ends=st.tuples(*[st.lists(st.integers(1, 40), min_size=1, max_size=6).map(sorted)] * 2),
    maps=st.integers(1, 3),
    seed=st.integers(0, 2**30),
)
@example(ends=([33], [33, 33, 40]), maps=2, seed=0)  # several tiles; nothing in the second part
@example(ends=([2, 3], [*range(1, 36, 2)]), maps=2, seed=0)  # the parts of two programs
@settings(max_examples=5, suppress_health_check=QUIET)
def test_sums_over_parts_are_those_of_the_loops(
    ends: tuple[list[int], list[int]], maps: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    beliefs = torch.rand(maps, ends[0][-1], ends[1][-1], generator=generator)
    beliefs = torch.where(beliefs < 0.1, 0.0, beliefs)  # H is that of the least probability
    found, expected = (
        part_sums(version, beliefs, *map(torch.tensor, ends))
        for version in (Version.TRITON, Version.LOOPS)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    cells = beliefs.double().clamp(1e-4, 1 - 1e-4)
    entropy = -(cells * cells.log2() + (1 - cells) * (1 - cells).log2())
    for k, plane in enumerate((beliefs, entropy, beliefs * entropy)):
        total = plane.double().sum((1, 2)).float()
        torch.testing.assert_close(found[:, k].sum((1, 2)), total, rtol=1e-5, atol=1e-4)


def choose(lattice: Lattice, state: Any, logits: Tensor, uniform: Tensor, floor: Any) -> Any:
    """Return actions, masks and probabilities of the kernel."""
    written = (
        torch.zeros(logits.shape[:2], dtype=torch.int64),
        torch.zeros(logits.shape, dtype=torch.bool),
        torch.zeros(logits.shape),
    )
    missions = state.positions, state.moves, state.active, lattice.offsets
    epsilon = torch.tensor(floor, dtype=torch.float64)
    choose_actions(logits.float().contiguous(), uniform, epsilon, *missions, *written)
    return written


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, which interprets
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_choose_allowed_actions(wrong: float) -> None:
    env = world(0)
    generator = torch.Generator().manual_seed(0)
    state = random_state(env, generator)
    logits = torch.zeros(MISSIONS, env.n_agents, env.lattice.num_actions)
    logits[0] = wrong
    logits[1, :, 2] = wrong
    uniform = torch.rand(logits.shape, generator=generator)
    actions, masks, probabilities = choose(env.lattice, state, logits, uniform, 0.0)
    assert masks.gather(2, actions.unsqueeze(2)).all()
    task: Any = SimpleNamespace(choose_in_order=partial(env.lattice.choose_in_missions, state))
    draw_one_by_one(task, logits, uniform, 0.0, actions, masks, probabilities)
    assert masks.gather(2, actions.unsqueeze(2)).all()


@pytest.mark.parametrize("actions", [4, 6, 27])
@given(
    seed=st.integers(0, 2**30),
    epsilon=st.sampled_from([0.0, 0.1, 1.0]),
    agents=st.sampled_from([1, 3, 7]),
    missions=st.sampled_from([1, 17]),
    zones=st.booleans(),
)
@settings(max_examples=3, suppress_health_check=QUIET)
def test_actions_are_those_drawn_one_by_one(
    actions: int, seed: int, epsilon: float, agents: int, missions: int, zones: bool
) -> None:
    team = (1, agents) if agents > 1 else 1
    config = small_config(agents=team, actions=actions, dims=(10.0, 15.0), max_altitude=10.0)
    lattice = Lattice(config, "cpu")
    generator = torch.Generator().manual_seed(seed)
    shape = (missions, agents, actions)
    active = (torch.rand(shape[:2], generator=generator) < 0.7) | (agents == 1)
    anywhere = torch.rand(*shape[:2], 3, generator=generator) * torch.tensor(lattice.shape)
    positions = anywhere.long()
    moves = lattice.table().expand(missions, *lattice.shape, actions)
    if zones:  # a table for each mission; one move stays, as everywhere in a mission
        moves = moves & (torch.rand(moves.shape, generator=generator) < 0.7)
        moves |= lattice.table() & (lattice.table().cumsum(-1) == 1)
    logits = torch.randn(shape, generator=generator) * 5
    uniform = torch.rand(shape, generator=generator)
    uniform[torch.rand(shape, generator=generator) < 0.05] = 0.0
    state = SimpleNamespace(positions=positions, moves=moves, active=active)
    found, masks, probabilities = choose(lattice, state, logits, uniform, epsilon)

    def follow(i: int, mask: Tensor) -> Tensor:
        assert masks[:, i].equal(mask)  # under the actions that the kernel chose
        policy = policy_probabilities(logits[:, i], mask, epsilon)
        torch.testing.assert_close(probabilities[:, i], policy, rtol=1e-6, atol=1e-7)
        assert (probabilities[:, i] > 0)[~mask].sum() == 0
        return found[:, i]

    lattice.choose_in_order(positions, follow, lattice.allowed(positions, moves), active)
    chance = probabilities.gather(2, found.unsqueeze(2)).squeeze(2)
    assert (chance > 0).all()
    best = sample_actions(probabilities, uniform, torch.ones_like(masks))
    assert (best == found).double().mean() > 0.99  # ties within a rounding


def test_each_mission_of_a_batch_is_that_mission_alone() -> None:
    def prepare(env: MissionEnvironment) -> ObservationBuilder:
        env.fusion = Fusion(env.config, env.camera, Version.TRITON)
        return builders(env)[1]

    options: dict[str, Any] = {"compute": {"compile": False}, "dims": (10.0, 15.0)}
    env = mixed_environment(2, prepare, agents=(1, 2), budget=(1, 2), pixels=(6, 6), **options)
    fly_and_compare(env, prepare, seed=0)  # teams and budgets of 1 and 2
