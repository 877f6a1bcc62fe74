"""The kernels beside the windows' on machines without a GPU: interpreted and compiled."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks.helpers.kernel_launches import (
    of_a_choice,
    of_an_update,
    of_predictions,
)
from benchmarks.helpers.machine_code import ARCHITECTURES, Launch
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.device import autocast, configure_backends, resolve_precision
from marl_framework.networks.convolutional import place
from marl_framework.networks.registry import make_actor
from marl_framework.training.trainer import Trainer
from tests.mission.kernels.compiling import check_machine_code, interpreted

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def test_interpreted_kernels_are_their_twins() -> None:
    interpreted("team", "updates")


@pytest.mark.parametrize("launches", [of_a_choice, of_predictions, of_an_update])
@pytest.mark.parametrize("teams", ["4", "[2, 4]"])
def test_kernels_compile_without_spills_and_atomics(
    launches: Callable[[Config], list[Launch]],
    teams: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    config = load_config("params_gpu.yaml", [f"experiment.missions.n_agents={teams}"])
    for launch, architecture in product(launches(config), ARCHITECTURES):
        check_machine_code(launch, architecture)


# On a GPU -----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("predicted", [False, True])
def test_maps_and_updates_on_a_gpu_are_those_of_plain_operators(predicted: bool) -> None:
    few = ["environment.num_envs=8", "learning.batch_size=60", "compute.precision=float32"]
    few += ["compute.tf32=false", "compute.cudnn_benchmark=false", "evaluation.missions=2"]
    if predicted:
        student = load_config("params_student.yaml").observation
        seen = student.actor_channels + student.critic_only_channels
        few += [f"observation.{name}=true" for name in seen]
    close = 1e-4 if predicted else 1e-5  # the predictor's layers add to the rounding
    trainers = []
    for compiled in ("true", "false"):
        torch.manual_seed(0)
        config = load_config("params_gpu.yaml", [*few, f"compute.compile={compiled}"])
        trainers.append(Trainer(config, torch.device("cuda", 0)))
    first = trainers[0]
    rollout = first.collector.collect(first.algorithm.act, 0.1)
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
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_network_on_a_gpu_is_that_of_plain_operators(precision: str) -> None:
    off = ["compute.tf32=false", "compute.cudnn_benchmark=false"]
    config = load_config("params_gpu.yaml", [*off, f"compute.precision={precision}"])
    gpu, sizes = torch.device("cuda", 0), config.network_sizes
    configure_backends(config.compute, gpu)
    torch.manual_seed(0)
    plain = make_actor(config.networks, config.compute, sizes).to(gpu)
    fused = place(deepcopy(plain), config.compute, gpu)
    maps = torch.rand(64, sizes.actor_channels, *sizes.shape, device=gpu)
    for network in (plain, fused):
        with autocast(gpu, resolve_precision(precision, gpu)):
            network(maps).square().mean().backward()
    most = 1e-4 if precision == "float32" else 3e-2
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= most * theirs.grad.norm()
        assert ours.grad.stride() == ours.stride()  # as fused Adam asks for
