"""The Triton kernels of windows, interpreted on the CPU, against plain operators.

Not collected: Triton decides on import whether it interprets, so `test_triton.py` runs this file
in a process of its own with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from marl_framework.kernels.versions import Version
from marl_framework.kernels.windows import window_bits
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import Fusion
from marl_framework.mission.state import MissionState
from tests.mission.asymmetric import ASYMMETRIC
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
    SQUARE | {"agents": 2, "environment": {"field": "random"}},
    UNSURE | {"agents": 2, "dims": (165.0, 165.0), "pixels": (3, 3)},  # 34 × 34 positions
]


@cache
def world(index: int) -> tuple[MissionEnvironment, Fusion]:
    """Return missions on plain operators, and kernels for the same."""
    config = small_config(compute={"compile": False}, **WORLDS[index])
    env = MissionEnvironment(config, MISSIONS, "cpu")
    assert env.fusion.version is Version.PLAIN
    return env, Fusion(config, env.camera, Version.TRITON)


def random_state(env: MissionEnvironment, generator: torch.Generator) -> MissionState:
    """Return missions in any state, at random positions, some of them corners."""
    state = env.reset()

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


def assert_twins(found: MissionState, expected: MissionState, rounds: int = 1) -> None:
    for name, tensor in expected.tensors():
        ours = getattr(found, name)
        if name in EXACT:
            assert ours.equal(tensor), name
        else:
            wide = name in {"weighted_entropy", "entropy"}
            rtol, atol = (5e-7, 0.0) if wide else (0.0, 2e-7 * rounds)
            torch.testing.assert_close(ours, tensor, rtol=rtol, atol=atol, msg=name)


@given(
    index=st.integers(0, len(WORLDS) - 1),
    seed=st.integers(0, 2**30),
    active=st.lists(st.booleans(), min_size=MISSIONS, max_size=MISSIONS),
    way=st.sampled_from(["bits", "keys", "blank", "shift"]),
)
@example(index=0, seed=0, active=[True, True], way="keys")
@example(index=1, seed=1, active=[True, False], way="bits")
@example(index=1, seed=2, active=[False, True], way="blank")
@example(index=0, seed=3, active=[True, True], way="shift")
@example(index=2, seed=4, active=[True, True], way="shift")
@example(index=3, seed=6, active=[True, True], way="keys")
@pytest.mark.soak
@settings(max_examples=1, suppress_health_check=list(HealthCheck))
def test_rounds_are_those_of_plain_operators(
    index: int, seed: int, active: list[bool], way: str
) -> None:
    env, kernels = world(index)
    generator = torch.Generator().manual_seed(seed)
    expected = random_state(env, generator)
    before, found = expected.clone(), expected.clone()
    chosen = torch.tensor(active)
    keys = torch.randint(-(2**62), 2**62, (MISSIONS,), generator=generator)
    bits = window_bits(keys, env.n_agents, env.camera.window)
    if way != "shift":
        gained = env.fusion.update(expected, bits, chosen, blank=way == "blank")
    if way == "shift":  # and frames are lost
        frames = torch.rand(MISSIONS, env.n_agents, generator=generator) < 0.7
        shift = torch.randint(-90, 90, (MISSIONS, env.n_agents, 2), generator=generator)
        gained = env.fusion.update(expected, bits, chosen, False, frames, shift)
        ours = kernels.update(found, keys, chosen, False, frames, shift)
    elif way == "bits":  # its parts, one by one
        view = kernels.view(found, chosen)
        kernels.read(found, view, bits)
        kernels.fuse_own(found, view, takes_heard=False)
        ours = kernels.fuse_global(found, view)
        kernels.fuse_own(found, view, takes_own=False)
    else:
        ours = kernels.update(found, keys, chosen, blank=way == "blank")
    for mine, theirs in zip(ours, gained, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=5e-7, atol=5e-7)
    assert_twins(found, expected)
    for name, tensor in before.tensors():
        assert getattr(found, name)[~chosen].equal(tensor[~chosen]), name


@pytest.mark.parametrize(
    "options", [FINE | {"agents": 2}, SQUARE | UNSURE | {"agents": 3, "uav": {"failure_rate": 0.4}}]
)
def test_missions_are_those_of_plain_operators(options: dict[str, Any]) -> None:
    config = small_config(compute={"compile": False}, **options)
    envs = [MissionEnvironment(config, 1, "cpu") for _ in range(2)]
    envs[1].fusion = Fusion(config, envs[1].camera, Version.TRITON)
    start, draws = envs[0].draw_reset(), envs[0].draw_step()
    expected, found = (env.reset(start) for env in envs)
    actions = random_actions(envs[0], expected, torch.Generator().manual_seed(0))
    plain, ours = (
        env.step(state, actions, draws) for env, state in zip(envs, (expected, found), strict=True)
    )
    torch.testing.assert_close(ours.relative, plain.relative, rtol=5e-7, atol=5e-7)
    assert_twins(found, expected, rounds=2)


def test_a_step_compiles_whole() -> None:
    env, kernels = world(0)
    other = MissionEnvironment(env.config, MISSIONS, "cpu")
    other.fusion = kernels
    draws, expected = env.draw_step(), env.reset()
    moves = random_actions(env, expected, torch.Generator().manual_seed(0))
    found = expected.clone()
    env.step(expected, moves, draws)
    torch.compile(other.step, fullgraph=True, backend="eager")(found, moves, draws)
    assert_twins(found, expected)
