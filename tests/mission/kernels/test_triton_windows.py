"""The Triton kernels on machines without a GPU: interpreted, compiled, and seen by PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.helpers.kernel_launches import of_windows
from benchmarks.helpers.machine_code import ARCHITECTURES
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.mission.draws import StepDraws
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import TritonFusion, WindowFusion, make_fusion, window_kernels
from marl_framework.mission.state import MissionState
from tests.mission.kernels.compiling import check_machine_code, interpreted
from tests.mission.kernels.drawn_bits import drawn_bits
from tests.small import meta_draws, small_config

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

GPU = torch.device("cuda", 0)


# Interpreted --------------------------------------------------------------------------------


def test_interpreted_kernels_are_their_twins() -> None:
    interpreted("windows")


# Compiled -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels are compiled anew, whatever the caller's environment says."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def step(fusion: WindowFusion, state: MissionState) -> None:
    fusion.update(state, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool))


def every_part(fusion: WindowFusion, state: MissionState) -> None:
    step(fusion, state)
    bits, active = torch.zeros(state.readings.shape, dtype=torch.int16), torch.ones(1).bool()
    fusion.measure(state, bits, active)
    fusion.fuse_heard(state, active)


def start(fusion: WindowFusion, state: MissionState) -> None:
    fusion.begin(state, torch.zeros(1, dtype=torch.int64), None)


STEP = ("read", "fuse", "add_parts", "fuse", "add_parts")


@pytest.mark.parametrize(
    ("params", "work", "number", "architectures"),
    [
        ("params_gpu.yaml", step, 5, ARCHITECTURES),
        # Parts of the same code: the oldest architecture stands for the others.
        ("params_gpu.yaml", every_part, 8, ARCHITECTURES[:1]),
        ("params_gpu.yaml", start, 5, ARCHITECTURES),
        ("params.yaml", step, 5, ARCHITECTURES[:1]),
    ],
)
def test_kernels_compile_without_spills_and_atomics(
    params: str,
    work: Callable[[WindowFusion, MissionState], None],
    number: int,
    architectures: tuple[int, ...],
) -> None:
    launches = of_windows(load_config(params), work)
    assert tuple(launch.name for launch in launches)[:5] == STEP
    variants = {launch.variant: launch for launch in launches}
    assert len(variants) == number
    for launch, architecture in product(variants.values(), architectures):
        check_machine_code(launch, architecture)


# Seen by PyTorch ----------------------------------------------------------------------------


def test_meta_and_fake_tensors_step_with_the_kernels() -> None:
    config = small_config()
    env = MissionEnvironment(config, 3, "meta")
    env._fusion = TritonFusion(config, env.camera)
    state, moves = env._empty_state(), torch.zeros(3, env.n_agents, dtype=torch.int64)
    result = env.step(state, moves.to("meta"), meta_draws(env))
    assert result.reward.shape == (3,)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = {name: torch.empty_like(t, device="cuda") for name, t in state.tensors()}
        sums = torch.ops.marl_framework.fuse_global(
            fakes["readings"],
            torch.empty(3, env.n_agents, 8, dtype=torch.int64, device="cuda"),
            torch.empty(3, env.n_agents, 2, device="cuda"),
            torch.empty(3, dtype=torch.bool, device="cuda"),
            fakes["global_belief"],
            fakes["pooled_global"],
            fakes["pooled_global_uncertainty"],
            True,
            None,
        )
    assert (sums.shape, sums.dtype, sums.device.type) == ((3, 3), torch.float64, "cuda")


def test_strided_memory_is_refused() -> None:
    config = small_config()
    env = MissionEnvironment(config, 2, "cpu")
    kernels = TritonFusion(config, env.camera)
    state = env._empty_state()
    state.beliefs = state.beliefs.mT
    with pytest.raises(ValueError, match="contiguous"):
        kernels.fuse_heard(state, torch.ones(2, dtype=torch.bool))


def test_kernels_start_on_the_tensors_gpu() -> None:
    from marl_framework.device import launched_on

    with FakeTensorMode():
        context = launched_on(torch.empty(1, device="cuda:1"))
    assert isinstance(context, torch.cuda.device)
    assert context.idx == 1


# Chosen -------------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Pretend a GPU, and what kernels need beside it."""

    def pretend(
        capability: tuple[int, int] = (9, 0),
        triton: bool = True,
        compiler: bool = True,
        headers: bool = True,
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        spec = SimpleNamespace() if triton else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
        which = "/usr/bin/gcc" if compiler else None
        monkeypatch.setattr("shutil.which", lambda name: which)
        (tmp_path / "Python.h").touch() if headers else None
        monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})

    return pretend


def chosen(config: Config) -> type:
    env = MissionEnvironment(config, 1, "cpu")
    return type(make_fusion(config, env.camera, GPU))


def test_a_gpu_gets_the_kernels(pretended: Callable[..., None]) -> None:
    pretended()
    assert chosen(small_config()) is TritonFusion
    assert chosen(small_config(compute={"compile": False})) is WindowFusion


@pytest.mark.parametrize(
    ("lack", "reason", "fix"),
    [
        ({"capability": (7, 5)}, "this GPU has compute capability 7.5, below 8.0", ""),
        ({"triton": False}, "triton is not installed", "pip install triton"),
        ({"compiler": False}, "there is no C compiler", "install gcc, or name a compiler in CC"),
        ({"headers": False}, "Python.h is missing", "install Python's headers"),
    ],
)
def test_a_gpu_that_cannot_run_them_gets_plain_operators_and_a_reason(
    pretended: Callable[..., None], lack: dict[str, Any], reason: str, fix: str
) -> None:
    pretended(**lack)
    assert chosen(small_config()) is WindowFusion
    kernels, why = window_kernels(small_config(), GPU)
    assert kernels == "plain operators"
    assert why is not None
    assert why.reason == reason
    assert why.fix.startswith(fix)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_computes_windows_has_a_name(pretended: Callable[..., None], compiled: bool) -> None:
    pretended()
    config = small_config(compute={"compile": compiled})
    kernels, why = window_kernels(config, GPU)
    assert (chosen(config) is TritonFusion) == (kernels == "Triton") == compiled
    assert (why is None) == compiled
    on_cpu = "compiled loops" if compiled else "plain operators"
    assert window_kernels(config, torch.device("cpu")) == (on_cpu, None)


def test_a_machine_without_a_gpu_gets_plain_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen(small_config()) is WindowFusion


# On a GPU -----------------------------------------------------------------------------------


@pytest.mark.gpu
def test_missions_on_a_gpu_are_those_of_the_twin_and_repeat() -> None:
    """The GPU's own logarithm and reciprocal are good to 2^-22."""

    def environment(compiled: bool) -> MissionEnvironment:
        config = load_config("params_gpu.yaml", [f"compute.compile={str(compiled).lower()}"])
        env = MissionEnvironment(config, 4, GPU)
        assert type(env._fusion) is (TritonFusion if compiled else WindowFusion)
        return env

    source = environment(True)
    start, steps = source.draw_reset(), [source.draw_step() for _ in range(5)]

    def fly(compiled: bool) -> tuple[MissionState, Tensor]:
        env = environment(compiled)

        def given(draws: StepDraws) -> StepDraws:
            if compiled:
                return draws
            bits = drawn_bits(draws.sensor, env.n_agents, env.camera.window)
            return replace(draws, sensor=bits)

        state = env.reset(replace(start, first=given(start.first)))
        generator, rewards = torch.Generator(GPU).manual_seed(0), []
        for draws in steps:

            def choose(_: int, mask: Tensor) -> Tensor:
                drawn = torch.rand(mask.shape, generator=generator, device=GPU)
                return (drawn * mask).argmax(-1)

            actions = env.lattice.choose_in_order(state.positions, choose)[0]
            rewards.append(env.step(state, actions, given(draws)).reward)
        return state, torch.stack(rewards)

    (found, ours), (again, repeated), (expected, theirs) = fly(True), fly(True), fly(False)
    assert ours.equal(repeated)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    # Near 1 a belief is rounded by 6e-4 of its log-odds, which contrary readings bring back.
    close = dict.fromkeys(("beliefs", "global_belief"), 5e-5)
    for name, tensor in expected.tensors():
        assert getattr(again, name).equal(getattr(found, name)), name
        torch.testing.assert_close(
            getattr(found, name),
            tensor,
            rtol=1e-5,
            atol=close.get(name, 3e-6) if tensor.is_floating_point() else 0.0,
            msg=lambda m, name=name: f"{name}: {m}",
        )
