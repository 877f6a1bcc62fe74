"""The Triton kernels: interpreted, compiled without a GPU, seen by PyTorch, chosen, on a GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.helpers.kernel_launches import of_a_choice, of_an_update, of_predictions, of_windows
from benchmarks.helpers.machine_code import ARCHITECTURES, Launch, compile_for
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.device import autocast, configure_backends, launched_on, resolve_precision
from marl_framework.kernels.versions import Version, version_for, window_kernels
from marl_framework.kernels.windows import window_bits
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import Fusion
from marl_framework.mission.state import MissionState, StepDraws
from marl_framework.networks.convolutional import place
from marl_framework.networks.registry import make_actor
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.training.trainer import Trainer
from tests.small import meta_draws, small_config
from tests.soaking import in_soak

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(("part", "marked"), [("u*", "not soak"), *in_soak(("*", ""))])
def test_interpreted_kernels_are_plain_operators_and_do_not_race(part: str, marked: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    old = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"  # Triton 3.6 makes them
    tests = sorted(map(str, Path(__file__).parent.glob(f"interpreted_{part}.py")))
    plugins = ("-p", "no:cacheprovider", "-p", "tests.kernels.races")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", marked, *plugins, "-W", old, *tests],
        cwd=Path(__file__).parents[2],
        env={**kept, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), "none may be skipped"


# Compiled -----------------------------------------------------------------------------------


@pytest.fixture
def _compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile kernels again, whatever the caller's environment says."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


ENDS = ARCHITECTURES[0], ARCHITECTURES[-1]
"""The oldest and the newest architecture, which stand for those between."""
WINDOW = (
    *("observation.window=11", "observation.places=true"),
    *("observation.other_actions=false", "observation.centred_other_actions=true"),
)
KEYS, ALL = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool)


def step(fusion: Fusion, state: MissionState) -> None:
    fusion.update(state, KEYS, ALL)


def start(fusion: Fusion, state: MissionState) -> None:
    fusion.update(state, KEYS, ALL, blank=True)


def every_part(fusion: Fusion, state: MissionState) -> None:
    step(fusion, state)
    view = fusion.view(state, ALL)
    fusion.read(state, view, torch.zeros(state.readings.shape, dtype=torch.int16))
    fusion.fuse_own(state, view, takes_heard=False)
    fusion.fuse_own(state, view, takes_own=False)


def check_machine_code(launch: Launch, architecture: int) -> None:
    """Compile a launch: it reads and writes memory, spills hardly and needs no atomics."""
    code = compile_for(launch, architecture)
    where = f"{launch.variant} on sm_{architecture}: {code}"
    assert code.registers <= 96, where
    assert code.spilled <= (32 if launch.name == "fuse" else 0), where
    assert {("ld", "global"), ("st", "global")} <= code.operations, where
    assert not {"atom", "red"} & {name for name, _ in code.operations}, where


@pytest.mark.usefixtures("_compiling")
@pytest.mark.parametrize(
    ("params", "work", "number", "architectures"),
    [
        ("params_gpu.yaml", step, 5, ENDS),
        *in_soak(  # parts of the same code: the oldest architecture stands for the others
            ("params_gpu.yaml", every_part, 8, ENDS[:1]),
            ("params_gpu.yaml", start, 5, ENDS),
            ("params.yaml", step, 5, ENDS[:1]),
        ),
    ],
)
def test_window_kernels_compile_without_atomics(
    params: str,
    work: Callable[[Fusion, MissionState], None],
    number: int,
    architectures: tuple[int, ...],
) -> None:
    launches = of_windows(load_config(params), work)
    names = [launch.name for launch in launches]
    assert names[:5] == ["read", "fuse", "add_parts", "fuse", "add_parts"]
    variants = {launch.variant: launch for launch in launches}
    assert len(variants) == number
    for launch, architecture in product(variants.values(), architectures):
        check_machine_code(launch, architecture)


@pytest.mark.usefixtures("_compiling")
@pytest.mark.parametrize("launches", [of_a_choice, of_predictions, of_an_update])
@pytest.mark.parametrize(
    ("teams", "architectures"),
    [("4", ENDS), ("32", ENDS[:1]), *in_soak(("[2, 4]", ENDS[:1]))],
)
def test_other_kernels_compile_without_atomics(
    launches: Callable[[Config], list[Launch]], teams: str, architectures: tuple[int, ...]
) -> None:
    config = load_config("params_gpu.yaml", [f"experiment.missions.n_agents={teams}"])
    for launch, architecture in product(launches(config), architectures):
        check_machine_code(launch, architecture)


@pytest.mark.soak
@pytest.mark.usefixtures("_compiling")
@pytest.mark.parametrize(
    "sets",
    [
        ("environment.x_dim=400", "environment.y_dim=400", "experiment.missions.n_agents=31"),
        ("environment.x_dim=400", "environment.y_dim=200", *WINDOW),
        ("experiment.constraints.num_actions=27",),
    ],
)
def test_kernels_of_large_areas_teams_and_action_sets_hardly_spill(sets: tuple[str, ...]) -> None:
    config = load_config("params_gpu.yaml", sets)
    launches = [*of_windows(config, step), *of_a_choice(config), *of_an_update(config)]
    variants = {launch.variant: launch for launch in launches}
    for launch, architecture in product(variants.values(), ENDS):
        code = compile_for(launch, architecture)
        assert code.spilled <= (64 if launch.name == "fuse" else 0), (launch.variant, code)


# Seen by PyTorch ----------------------------------------------------------------------------


def test_meta_and_fake_tensors_step_with_the_kernels() -> None:
    config = small_config()
    env = MissionEnvironment(config, 3, "meta")
    env.fusion = Fusion(config, env.camera, Version.TRITON)
    state, moves = env.empty_state(), torch.zeros(3, env.n_agents, dtype=torch.int64)
    result = env.step(state, moves.to("meta"), meta_draws(env))
    assert result.reward.shape == (3,)
    with FakeTensorMode(allow_non_fake_inputs=True):
        view = env.fusion.view(state, torch.empty(3, dtype=torch.bool, device="meta"))
        seen = state.readings, view.boxes, view.odds, view.active
        maps = state.global_belief, state.pooled_global, state.pooled_global_uncertainty
        fakes = (torch.empty_like(tensor, device="cuda") for tensor in (*seen, *maps))
        sums = torch.ops.marl_framework.fuse_global(*fakes, True, None)
        context = launched_on(torch.empty(1, device="cuda:1"))
    assert (sums.shape, sums.dtype, sums.device.type) == ((3, 3), torch.float64, "cuda")
    assert isinstance(context, torch.cuda.device)  # kernels start on the tensor's GPU
    assert context.idx == 1


@pytest.mark.parametrize("version", [Version.TRITON, Version.LOOPS])
def test_strided_memory_is_refused(version: Version) -> None:
    env = MissionEnvironment(small_config(), 2, "cpu")
    fusion, state = Fusion(env.config, env.camera, version), env.empty_state()
    state.beliefs = state.beliefs.mT
    with pytest.raises(ValueError, match="contiguous"):
        fusion.fuse_own(state, fusion.view(state, torch.ones(2, dtype=torch.bool)))


# Chosen -------------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Pretend a GPU, and what kernels need beside it."""

    def pretend(capability: tuple[int, int] = (9, 0), lacks: str = "") -> None:
        spec = None if lacks == "triton" else SimpleNamespace()
        compiler = None if lacks == "compiler" else "/usr/bin/gcc"
        (tmp_path / "Python.h").touch() if lacks != "headers" else None
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
        monkeypatch.setattr("shutil.which", lambda name: compiler)
        monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})

    return pretend


@pytest.mark.parametrize(
    ("lack", "reason", "fix"),
    [
        ({"capability": (7, 5)}, "capability 7.5", ""),
        ({"lacks": "triton"}, "triton", "pip install triton"),
        ({"lacks": "compiler"}, "compiler", "gcc"),
        ({"lacks": "headers"}, "Python.h", "python3-dev"),
    ],
)
def test_a_gpu_that_cannot_run_them_gets_plain_operators_and_a_reason(
    pretended: Callable[..., None], lack: dict[str, Any], reason: str, fix: str
) -> None:
    pretended(**lack)
    compute = small_config().compute
    assert version_for(compute, GPU) is Version.PLAIN
    name, why = window_kernels(compute, GPU)
    assert name == Version.PLAIN.value
    assert why is not None
    assert reason in why.reason
    assert fix in why.fix


@pytest.mark.parametrize("compiled", [True, False])
def test_devices_get_the_fastest_version(pretended: Callable[..., None], compiled: bool) -> None:
    compute = small_config(compute={"compile": compiled}).compute
    assert version_for(compute, GPU) is Version.PLAIN  # there is none
    pretended()
    on_gpu, on_cpu = (Version.TRITON, Version.LOOPS) if compiled else (Version.PLAIN,) * 2
    name, why = window_kernels(compute, GPU)
    assert name == on_gpu.value == version_for(compute, GPU).value
    assert (why is None) == compiled
    assert version_for(compute, CPU) is on_cpu
    assert window_kernels(compute, CPU) == (on_cpu.value, None)


# On a GPU -----------------------------------------------------------------------------------


@pytest.mark.gpu
def test_missions_on_a_gpu_are_those_of_plain_operators_and_repeat() -> None:
    """The GPU's own logarithm and reciprocal are good to 2^-22."""

    def environment(compiled: bool) -> MissionEnvironment:
        config = load_config("params_gpu.yaml", [f"compute.compile={str(compiled).lower()}"])
        env = MissionEnvironment(config, 4, GPU)
        assert env.fusion.version is (Version.TRITON if compiled else Version.PLAIN)
        return env

    source = environment(True)
    start, steps = source.draw_reset(), [source.draw_step() for _ in range(5)]

    def fly(compiled: bool) -> tuple[MissionState, Tensor]:
        env = environment(compiled)

        def given(draws: StepDraws) -> StepDraws:
            if compiled:
                return draws
            bits = window_bits(draws.sensor, env.n_agents, env.camera.window)
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
        off = close.get(name, 3e-6) if tensor.is_floating_point() else 0.0
        torch.testing.assert_close(getattr(found, name), tensor, rtol=1e-5, atol=off, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("predicted", [False, True])
def test_maps_and_updates_on_a_gpu_are_those_of_plain_operators(predicted: bool) -> None:
    few = ["environment.num_envs=8", "learning.batch_size=60", "compute.precision=float32"]
    few += ["compute.tf32=false", "compute.cudnn_benchmark=false", "evaluation.missions=2"]
    if predicted:
        student = load_config("params_collective.yaml").observation
        seen = student.actor_channels + student.critic_only_channels
        few += [f"observation.{name}=true" for name in seen]
    close = 1e-4 if predicted else 1e-5  # the predictor's layers add to the rounding
    trainers = []
    for compiled in ("true", "false"):
        torch.manual_seed(0)
        config = load_config("params_gpu.yaml", [*few, f"compute.compile={compiled}"])
        trainers.append(Trainer(config, GPU))
    first = trainers[0]
    rollout = first.collectors[0].collect(first.algorithm.act, 0.1)
    state, actions = first.task.state, rollout.actions[-1]
    for draw in ("actor", "critic_only"):
        arguments = (state,) if draw == "actor" else (state, actions)
        ours, theirs = (getattr(t.task.builder, draw)(*arguments) for t in trainers)
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close)
    found, expected = (
        t.algorithm.update(rollout, 0.1, torch.Generator("cuda").manual_seed(0)) for t in trainers
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-2, atol=1e-3, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize(("agents", "seen"), [(31, ()), (64, ()), (8, WINDOW)])
def test_maps_of_large_areas_on_a_gpu_are_those_of_plain_operators(
    agents: int, seen: tuple[str, ...]
) -> None:
    area = ["environment.x_dim=100", "environment.y_dim=100", *seen]
    config = load_config("params_gpu.yaml", [*area, f"experiment.missions.n_agents={agents}"])
    env = MissionEnvironment(config, 2, GPU)
    state = env.reset()
    ours, theirs = (
        ObservationBuilder(config, env.lattice, env.camera, version).actor(state)
        for version in (Version.TRITON, Version.PLAIN)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_network_on_a_gpu_is_that_of_plain_operators(precision: str) -> None:
    off = ["compute.tf32=false", "compute.cudnn_benchmark=false"]
    config = load_config("params_gpu.yaml", [*off, f"compute.precision={precision}"])
    sizes = config.network_sizes
    configure_backends(config.compute, GPU)
    torch.manual_seed(0)
    plain = make_actor(config.networks, config.compute, sizes).to(GPU)
    fused = place(deepcopy(plain), config.compute, GPU)
    maps = torch.rand(64, sizes.actor_channels, *sizes.shape, device=GPU)
    for network in (plain, fused):
        with autocast(GPU, resolve_precision(precision, GPU)):
            network(maps).square().mean().backward()
    most = 1e-4 if precision == "float32" else 3e-2
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= most * theirs.grad.norm()
        assert ours.grad.stride() == ours.stride()  # as fused Adam requires
