"""The compiled loops against their PyTorch twins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import marl_framework
from marl_framework.mission.area import area_weights
from marl_framework.mission.belief import uncertainty
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import CompiledFusion, WindowFusion
from marl_framework.mission.kernels import scalars, window_loops
from marl_framework.mission.kernels.cpu import WindowLoops
from marl_framework.mission.kernels.division import divide, divide_each
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import random_actions, small_config


@given(shares=st.integers(1, 40), extra=st.integers(0, 200))
def test_divisions_are_the_area_weights(shares, extra):
    cells = shares + extra
    division, weights = divide(cells, shares), area_weights(cells, shares).numpy()
    by_cell = np.zeros((shares, cells))
    for c in range(cells):
        for k in (0, 1):
            by_cell[division.bins[c, k], c] += division.weights[c, k]
    np.testing.assert_allclose(by_cell, weights, atol=1e-7)
    by_share = np.zeros((shares, cells))
    for s in range(shares):
        low, high = division.inner_low[s], division.inner_high[s]
        by_share[s, low:high] = division.inner
        if division.left[s] > 0:
            by_share[s, low - 1] = division.left[s]
        if division.right[s] > 0:
            by_share[s, high] = division.right[s]
    np.testing.assert_allclose(by_share, weights, atol=1e-7)


def test_stacked_divisions_are_the_single_ones():
    stacked = divide_each([12, 30, 7], 5)
    for k, cells in enumerate((12, 30, 7)):
        single = divide(cells, 5)
        for whole, one in zip(stacked, single, strict=True):
            np.testing.assert_array_equal(whole[k, : len(one)] if np.ndim(one) else whole[k], one)
    assert len(divide_each([3], 5).bins[0]) == 5


def test_logarithm_and_entropy_are_exact_enough():
    p = np.concatenate(
        [np.linspace(1e-4, 1 - 1e-4, 20001), np.geomspace(1e-4, 1, 2000), [0.5, 0.0, 1.0]]
    ).astype(np.float32)
    exact = p.astype(np.float64).clip(1e-4, 1 - 1e-4)
    logs = [scalars.log2(np.float32(x)) for x in exact]
    np.testing.assert_allclose(logs, np.log2(exact.astype(np.float32)), atol=2e-6, rtol=2e-7)
    entropies = [scalars.entropy(x) for x in p]
    expected = -exact * np.log2(exact) - (1 - exact) * np.log2(1 - exact)
    np.testing.assert_allclose(entropies, expected, atol=1e-6)
    uncertainties = [window_loops._uncertainty(x) for x in p]
    np.testing.assert_allclose(uncertainties, exact * expected, atol=1e-6)
    np.testing.assert_allclose(uncertainty(torch.from_numpy(p)), exact * expected, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"agents": 4},
        {"agents": 1, "actions": 4},
        {"agents": 6, "actions": 27, "dims": (20.0, 30.0), "pixels": (9, 14), "prior": 0.3},
        {"agents": 16, "actions": 9, "max_altitude": 25.0, "uav": {"failure_rate": 0.3}},
        {"agents": 4, "prior": 0.3, "observation": {"centred_uncertainty": True}},
        {"agents": 5, "dims": (5.0, 40.0), "pixels": (4, 2)},  # a map hardly finer than the lattice
        {"agents": 4, "prior": 0.4, "sensor": ASYMMETRIC},
    ],
)
def test_compiled_and_plain_missions_are_equal(options):
    envs = [
        MissionEnvironment(small_config(compute={"compile": flag}, **options), 5, "cpu")
        for flag in (True, False)
    ]
    assert type(envs[0]._fusion) is CompiledFusion
    assert type(envs[1]._fusion) is WindowFusion
    states = [env.reset(env.draw_reset()) for env in envs]
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        actions = random_actions(envs[0], states[0], generator)
        compiled, plain = (
            env.step(state, actions, env.draw_step())
            for env, state in zip(envs, states, strict=True)
        )
        torch.testing.assert_close(compiled.reward, plain.reward, rtol=1e-4, atol=1e-5)
        for name, tensor in states[1].tensors():
            torch.testing.assert_close(
                getattr(states[0], name),
                tensor,
                rtol=1e-5,
                atol=3e-6,
                msg=lambda m, name=name: f"{name}: {m}",
            )


def test_results_do_not_depend_on_the_number_of_threads():
    beliefs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        env = MissionEnvironment(small_config(agents=4), 6, "cpu")
        state = env.reset(env.draw_reset())
        for _ in range(3):
            actions = random_actions(env, state, torch.Generator().manual_seed(1))
            env.step(state, actions, env.draw_step())
        beliefs.append(state.beliefs)
    torch.set_num_threads(1)
    assert torch.equal(*beliefs)


def test_strided_memory_is_refused():
    loops = WindowLoops((20, 20), (4, 4), [[6], [6]])
    strided = torch.zeros(2, 1, 20, 40)[..., ::2]
    boxes = torch.zeros(2, 1, 8, dtype=torch.int64)
    with pytest.raises(ValueError, match="contiguous"):
        loops.fuse_heard(
            torch.zeros(2, 1, 4, 4, dtype=torch.int8),
            torch.zeros(2, 1, 1, dtype=torch.bool),
            boxes,
            torch.ones(2, 1, 2),
            strided,
            torch.zeros(2, 1, 4, 4),
            torch.zeros(2, 1, 4, 4),
        )


def test_the_loops_leave_the_number_of_threads_as_it_is():
    code = "import torch, marl_framework.mission.kernels.cpu; print(torch.get_num_threads())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"


SUMS = """
import torch
from marl_framework.mission.environment import MissionEnvironment
from tests.small import small_config

env = MissionEnvironment(small_config(pixels=(24, 24)), 4, "cpu")
state, generator = env._empty_state(), torch.Generator().manual_seed(0)  # no other loop compiles
state.positions.copy_(torch.randint(3, state.positions.shape, generator=generator))
state.readings.random_(-1, 2, generator=generator)
state.global_belief.uniform_(0.01, 0.99, generator=generator)
env.refresh(state)
utility = env.fuse_global(state)
print([number.hex() for number in state.weighted_entropy.tolist() + utility.absolute.tolist()])
"""


def test_the_run_that_compiles_gives_the_same_bits_as_those_that_load(tmp_path):
    first, second = (
        subprocess.run(
            [sys.executable, "-c", SUMS],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    )
    assert any(tmp_path.rglob("*.nbc"))
    assert first == second


ENTROPY = """
import torch
from marl_framework.mission.kernels.cpu import part_sums

print(part_sums(torch.full((1, 2, 2), 0.5), torch.tensor([2]), torch.tensor([2]))[0, 1].item())
"""


def test_a_change_of_what_loops_use_reaches_those_in_the_cache(tmp_path):
    def summed() -> float:
        command = [sys.executable, "-c", ENTROPY]
        caches = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(command, cwd=tmp_path, env=caches, check=True, stdout=PIPE)
        return float(done.stdout)

    package = Path(marl_framework.__file__).parent
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    assert summed() == 4.0
    scalars_file = tmp_path / package.name / "mission" / "kernels" / "scalars.py"
    text = scalars_file.read_text(encoding="utf-8")
    was = scalars_file.stat().st_mtime_ns
    scalars_file.write_text(text.replace("return -(p *", "return -2 * (p *"), encoding="utf-8")
    os.utime(scalars_file, ns=(was, was))  # as copies and archives keep it
    assert summed() == 8.0
    compiled = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.nbi")}
    assert summed() == 8.0
    assert compiled == {path: path.stat().st_mtime_ns for path in compiled}
