"""The compiled loops against plain operators."""

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
from hypothesis import example, given
from hypothesis import strategies as st

import marl_framework
from marl_framework.kernels.cells import area_weights
from marl_framework.kernels.cells_numba import padded, pool_row
from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import random_actions, small_config

ROOT = Path(__file__).parents[2]


@given(
    shape=st.tuples(*[st.tuples(st.integers(1, 20), st.integers(0, 60))] * 2), seed=st.integers(0)
)
@example(shape=((11, 482), (1, 0)), seed=0)
def test_rows_are_pooled_with_the_area_weights(shape, seed):
    (x, more_rows), (y, more_cols) = shape
    rows, cols = x + more_rows, y + more_cols
    generator = np.random.default_rng(seed)
    (row0, row1), (col0, col1) = (
        sorted(generator.choice(n + 1, 2, replace=False)) for n in (rows, cols)
    )
    cells = np.zeros((rows, cols), np.float32)
    cells[row0:row1, col0:col1] = generator.random((row1 - row0, col1 - col0))
    change, totals = np.zeros((2, padded(col1 - col0)), np.float32)
    pooled = np.zeros((x, y), np.float32)
    for r in range(row0, row1):
        change[: col1 - col0] = cells[r, col0:col1]
        pool_row(change, totals, (col0, col1), (r, row1), pooled, (rows, cols))
    weights = area_weights(rows, x).numpy(), area_weights(cols, y).numpy()
    np.testing.assert_allclose(pooled, weights[0] @ cells @ weights[1].T, atol=2e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"agents": 4},
        {"agents": 1, "actions": 4},
        {"agents": 6, "actions": 27, "dims": (20.0, 30.0), "pixels": (9, 14), "prior": 0.3},
        {"agents": 16, "actions": 9, "max_altitude": 25.0, "uav": {"failure_rate": 0.3}},
        {"agents": 4, "prior": 0.3, "observation": {"centred_uncertainty": True}},
        # A map hardly finer than the lattice, and footprints of fewer cells than it has positions.
        {"agents": 5, "dims": (5.0, 40.0), "pixels": (4, 2)},
        {"agents": 4, "prior": 0.4, "sensor": ASYMMETRIC},
    ],
)
def test_compiled_and_plain_missions_are_equal(options):
    envs = [
        MissionEnvironment(small_config(compute={"compile": flag}, **options), 5, "cpu")
        for flag in (True, False)
    ]
    assert [env.fusion.version for env in envs] == [Version.LOOPS, Version.PLAIN]
    states = [env.reset() for env in envs]
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        actions = random_actions(envs[0], states[0], generator)
        compiled, plain = (
            env.step(state, actions) for env, state in zip(envs, states, strict=True)
        )
        torch.testing.assert_close(compiled.reward, plain.reward, rtol=1e-4, atol=1e-5)
        for name, tensor in states[1].tensors():
            found = getattr(states[0], name)
            torch.testing.assert_close(found, tensor, rtol=1e-5, atol=3e-6, msg=name)


def test_results_do_not_depend_on_the_number_of_threads():
    beliefs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        env = MissionEnvironment(small_config(agents=4), 6, "cpu")
        state = env.reset()
        for _ in range(3):
            actions = random_actions(env, state, torch.Generator().manual_seed(1))
            env.step(state, actions)
        beliefs.append(state.beliefs)
    assert torch.equal(*beliefs)


def printed(code: str, folder: Path, **variables: str) -> str:
    """Return the output of a process on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=PIPE, text=True)
    return done.stdout


def test_the_loops_leave_the_number_of_threads_as_it_is():
    code = "import torch, marl_framework.kernels.loops; print(torch.get_num_threads())"
    assert printed(code, ROOT) == "1\n"


SUMS = """
import torch
from marl_framework.mission.environment import MissionEnvironment
from tests.small import small_config

env = MissionEnvironment(small_config(pixels=(24, 24)), 4, "cpu")
state, generator = env.empty_state(), torch.Generator().manual_seed(0)  # no other loop compiles
state.positions.copy_(torch.randint(3, state.positions.shape, generator=generator))
state.readings.random_(-1, 2, generator=generator)
state.global_belief.uniform_(0.01, 0.99, generator=generator)
env.refresh(state)
view = env.fusion.view(state, torch.ones(4, dtype=torch.bool))
utility = env.fusion.fuse_global(state, view)
print([number.hex() for number in state.weighted_entropy.tolist() + utility.absolute.tolist()])
"""


@pytest.mark.soak
def test_the_run_that_compiles_gives_the_same_bits_as_those_that_load(tmp_path):
    first, second = (printed(SUMS, ROOT, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert any(tmp_path.rglob("*.nbc"))
    assert first == second


ENTROPY = """
import torch
from marl_framework.kernels.cells_numba import part_sums

print(part_sums(torch.full((1, 2, 2), 0.5), torch.tensor([2]), torch.tensor([2]))[0, 1].item())
"""


@pytest.mark.soak
def test_a_change_of_what_loops_use_reaches_those_in_the_cache(tmp_path):
    def summed() -> float:
        return float(printed(ENTROPY, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")))

    package = Path(marl_framework.__file__).parent
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    assert summed() == 4.0
    cells = tmp_path / package.name / "kernels" / "cells_numba.py"
    text = cells.read_text(encoding="utf-8")
    was = cells.stat().st_mtime_ns
    cells.write_text(text.replace("return -(p *", "return -2 * (p *"), encoding="utf-8")
    os.utime(cells, ns=(was, was))  # as copies and archives keep it
    assert summed() == 8.0
    compiled = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.nbi")}
    assert summed() == 8.0
    assert compiled == {path: path.stat().st_mtime_ns for path in compiled}
