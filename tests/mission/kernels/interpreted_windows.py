"""The Triton kernels, interpreted on the CPU, against their PyTorch twins.

Not collected by itself: Triton decides when it is imported whether it interprets, so that
`test_triton_windows.py` runs this file in a process of its own with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import TritonFusion, WindowFusion
from marl_framework.mission.kernels import window_operators
from marl_framework.mission.reward import Utility
from marl_framework.mission.state import MissionState
from tests.mission.asymmetric import ASYMMETRIC
from tests.mission.kernels.drawn_bits import drawn_bits
from tests.small import random_actions, small_config

assert os.environ.get("TRITON_INTERPRET") == "1"

MISSIONS = 2
EXACT = {"truth", "beliefs", "global_belief", "positions", "t", "communication_range", "readings"}
EXACT |= {"heard"}

# Lattices of 3 × 3, 3 × 4 and 2 × 3 positions.
SQUARE = {"dims": (10.0, 10.0)}  # 20 × 20 cells: lattice rows share cell rows
COARSE = {"dims": (10.0, 15.0), "pixels": (3, 3)}  # footprints of 2 cells, of one in a corner
FINE = {"dims": (5.0, 10.0), "pixels": (36, 40)}  # 31 × 69 cells: tiles end where shares do
UNSURE = {"observation": {"centred_uncertainty": True}}
WORLDS: list[dict[str, Any]] = [
    SQUARE | {"agents": 2},
    COARSE | UNSURE | {"agents": 3, "prior": 0.3, "sensor": ASYMMETRIC},
]


@cache
def world(index: int) -> tuple[MissionEnvironment, TritonFusion]:
    """Return missions on the twin, and kernels for the same."""
    config = small_config(compute={"compile": False}, **WORLDS[index])
    env = MissionEnvironment(config, MISSIONS, "cpu")
    assert type(env._fusion) is WindowFusion
    return env, TritonFusion(config, env.camera)


def random_state(env: MissionEnvironment, generator: torch.Generator) -> MissionState:
    """Return missions in which anything may be, at random positions, a part of them corners."""
    state = env.reset(env.draw_reset())

    def uniform(like: Tensor) -> Tensor:
        return torch.rand(like.shape, generator=generator)

    size = torch.tensor(env.lattice.shape)
    anywhere = (uniform(state.positions) * size).long()
    corners = (uniform(state.positions) < 0.5) * (size - 1)
    low = torch.rand(MISSIONS, env.n_agents, 1, generator=generator) < 0.3
    state.positions.copy_(torch.where(low, corners, anywhere))
    state.truth.copy_(uniform(state.truth) < 0.4)
    for belief in (state.beliefs, state.global_belief):
        known = uniform(belief)
        belief.copy_(torch.where(known < 0.1, known.round(), uniform(belief)))
        belief[uniform(belief) < 0.3] = 0.5
    state.heard.copy_((uniform(state.heard) < 0.6) | torch.eye(env.n_agents, dtype=torch.bool))
    env.refresh(state)
    return state


def assert_twins(found: MissionState, expected: MissionState) -> None:
    for name, tensor in expected.tensors():
        ours = getattr(found, name)
        if name in EXACT:
            assert ours.equal(tensor), name
        else:
            wide = name in {"weighted_entropy", "entropy"}
            rtol, atol = (5e-7, 0.0) if wide else (0.0, 2e-7)
            torch.testing.assert_close(
                ours, tensor, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
            )


def assert_same_gain(found: Utility, expected: Utility) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-7, atol=5e-7)


def one_by_one(fusion: WindowFusion, state: MissionState, bits: Tensor, active: Tensor) -> Utility:
    fusion.measure(state, bits, active)
    gained = fusion.fuse_global(state, active)
    fusion.fuse_heard(state, active)
    return gained


def at_once(fusion: WindowFusion, state: MissionState, bits: Tensor, active: Tensor) -> Utility:
    return fusion.update(state, bits, active)


@given(
    index=st.integers(0, len(WORLDS) - 1),
    seed=st.integers(0, 2**30),
    active=st.lists(st.booleans(), min_size=MISSIONS, max_size=MISSIONS),
    way=st.sampled_from([one_by_one, at_once]),
)
@example(index=0, seed=0, active=[True, True], way=at_once)
@example(index=1, seed=1, active=[True, False], way=one_by_one)
@settings(max_examples=2, suppress_health_check=list(HealthCheck))
def test_a_round_is_that_of_the_twin(
    index: int, seed: int, active: list[bool], way: Callable[..., Utility]
) -> None:
    env, kernels = world(index)
    generator = torch.Generator().manual_seed(seed)
    expected = random_state(env, generator)
    before, found = expected.clone(), expected.clone()
    window = (MISSIONS, env.n_agents, *env.camera.window)
    bits = torch.randint(-(2**15), 2**15, window, generator=generator).short()
    given = bits
    if way is at_once:  # as missions do: keys, of which the kernel draws
        given = torch.randint(-(2**62), 2**62, (MISSIONS,), generator=generator)
        bits = drawn_bits(given, window[1], window[2:])
    chosen = torch.tensor(active)
    gained = env._fusion.update(expected, bits, chosen)
    assert_same_gain(way(kernels, found, given, chosen), gained)
    assert_twins(found, expected)
    for name, tensor in before.tensors():
        assert getattr(found, name)[~chosen].equal(tensor[~chosen]), name


@pytest.mark.parametrize(("index", "starting"), [(0, None), (1, [False, True])])
def test_missions_begin_as_those_of_the_twin(index: int, starting: list[bool] | None) -> None:
    env, kernels = world(index)
    expected = random_state(env, torch.Generator().manual_seed(index))
    before, found = expected.clone(), expected.clone()
    mask = None if starting is None else torch.tensor(starting)
    keys = torch.tensor([3, 4])
    bits = drawn_bits(keys, env.n_agents, env.camera.window)
    env._fusion.begin(expected, bits, mask)
    kernels.begin(found, keys, mask)
    assert_twins(found, expected)
    if mask is not None:
        for name, tensor in before.tensors():
            assert getattr(found, name)[~mask].equal(tensor[~mask]), name


@pytest.mark.parametrize(
    "options", [FINE | {"agents": 2}, SQUARE | UNSURE | {"agents": 3, "uav": {"failure_rate": 0.4}}]
)
def test_missions_are_those_of_the_twin(options: dict[str, Any]) -> None:
    config = small_config(compute={"compile": False}, **options)
    envs = [MissionEnvironment(config, 1, "cpu") for _ in range(2)]
    envs[1]._fusion = TritonFusion(config, envs[1].camera)
    expected, found = (env.reset(env.draw_reset()) for env in envs)
    generator = torch.Generator().manual_seed(0)
    actions = random_actions(envs[0], expected, generator)
    plain, ours = (
        env.step(state, actions, env.draw_step())
        for env, state in zip(envs, (expected, found), strict=True)
    )
    torch.testing.assert_close(ours.relative, plain.relative, rtol=5e-7, atol=5e-7)
    for name, tensor in expected.tensors():
        torch.testing.assert_close(
            getattr(found, name),
            tensor,
            rtol=1e-6,
            atol=0.0 if name in EXACT else 4e-7,  # pooled maps add up two rounds
            msg=lambda m, name=name: f"{name}: {m}",
        )


def test_a_step_compiles_whole() -> None:
    env, kernels = world(0)
    config = small_config(compute={"compile": False}, **WORLDS[0])
    other = MissionEnvironment(config, MISSIONS, "cpu")
    other._fusion = kernels
    draws, expected = env.draw_step(), env.reset(env.draw_reset())
    moves = random_actions(env, expected, torch.Generator().manual_seed(0))
    found = expected.clone()
    env.step(expected, moves, draws)
    torch.compile(other.step, fullgraph=True, backend="eager")(found, moves, draws)
    assert_twins(found, expected)


def launches() -> list[tuple[str, tuple[Any, ...]]]:
    """Return what a round calls the operators with."""
    env, _ = world(0)
    state = random_state(env, torch.Generator().manual_seed(3))
    calls: list[tuple[str, tuple[Any, ...]]] = []

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                copies = tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments)
                calls.append((name, copies))
                return getattr(window_operators, name)(*arguments)

            return call

    recorded = TritonFusion(env.config, env.camera)
    recorded._operators = Recorder()  # type: ignore[assignment]
    recorded.update(state, env.draw_step().sensor, torch.ones(MISSIONS, dtype=torch.bool))
    return calls


def test_operators_keep_the_promises_of_their_schemas() -> None:
    calls = launches()
    assert [name for name, _ in calls] == ["read_windows", "fuse_global", "fuse_own"]
    for name, arguments in calls:
        torch.library.opcheck(
            getattr(torch.ops.marl_framework, name).default,
            arguments,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )
