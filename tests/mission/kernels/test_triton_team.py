"""The kernels of observations and actions on machines without a GPU: interpreted and compiled."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.config.loading import load_config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.kernels import ActionKernel, TritonBuilder
from tests.mission.kernels.compiling import ARCHITECTURES, Launch, recorded, usage

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

MOST_REGISTERS = 128


def test_interpreted_kernels_are_their_twins() -> None:
    tests = Path(__file__).with_name("interpreted_team.py")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=Path(__file__).parents[3],
        env={**kept, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), "none may be skipped"


def launches(params: str) -> list[Launch]:
    """Return the kernels that a joint step launches."""
    from marl_framework.mission.kernels import triton_choice, triton_maps

    config = load_config(params)
    env = MissionEnvironment(config, 1, "cpu")
    builder, state = TritonBuilder(config, env.lattice, env.camera), env._empty_state()
    shape = (1, env.n_agents, env.lattice.num_actions)
    actions = torch.zeros(shape[:2], dtype=torch.int64)
    masks = torch.zeros(shape, dtype=torch.bool)
    floor = torch.zeros((), dtype=torch.float64)
    logits, uniform, probabilities = torch.zeros(3, *shape)
    kernels = [(triton_maps, "draw_actor"), (triton_maps, "draw_critic"), (triton_choice, "choose")]
    with recorded(*kernels) as found:
        builder.actor(state)
        builder.critic_only(state, actions)
        choose = ActionKernel(env.lattice, lambda: state.positions)
        choose(logits, uniform, floor, actions, masks, probabilities)
    assert [name for name, *_ in found] == [name for _, name in kernels]
    return found


@pytest.mark.parametrize("index", range(3))
def test_kernels_compile_without_spills_and_atomics(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launch = launches("params_gpu.yaml")[index]
    for architecture in ARCHITECTURES:
        needs: dict[str, Any] = usage(launch, architecture, tmp_path)
        where = f"{launch[0]} on sm_{architecture}: {needs}"
        print(launch[0], architecture, needs["registers"], needs["stack"], needs["local"])
        assert needs["registers"] <= MOST_REGISTERS, where
        assert (needs["stack"], needs["local"]) == (0, 0), where
        assert {"LDG", "STG"} <= needs["operations"], where
        wrong = {op for op in needs["operations"] if re.match(r"ATOM|RED|LDL|STL", op)}
        assert wrong <= {"REDUX"}, where
