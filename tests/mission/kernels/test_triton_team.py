"""The kernels beside the windows' on machines without a GPU: interpreted and compiled."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from pathlib import Path

import pytest
import torch

from marl_framework.algorithms.batch import Transitions
from marl_framework.config.loading import load_config
from marl_framework.device import autocast, configure_backends, resolve_precision
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.networks.convolutional import place
from marl_framework.networks.registry import make_actor
from marl_framework.observations.kernels import ActionKernel, TritonBuilder
from marl_framework.training.trainer import Trainer
from tests.mission.kernels.compiling import (
    ARCHITECTURES,
    Launch,
    check_machine_code,
    interpreted,
    recorded,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def test_interpreted_kernels_are_their_twins() -> None:
    interpreted("team", "updates", "networks")


def launches_of_a_step(params: str, *overrides: str) -> list[Launch]:
    """Return the kernels that a joint step launches."""
    from marl_framework.mission.kernels import triton_choice, triton_maps

    config = load_config(params, overrides)
    env = MissionEnvironment(config, 1, "cpu")
    builder, state = TritonBuilder(config, env.lattice, env.camera), env._empty_state()
    shape = (1, env.n_agents, env.lattice.num_actions)
    actions = torch.zeros(shape[:2], dtype=torch.int64)
    masks = torch.zeros(shape, dtype=torch.bool)
    floor = torch.zeros((), dtype=torch.float64)
    logits, uniform, probabilities = torch.zeros(3, *shape)
    kernels = [(triton_maps, "draw_actor"), (triton_maps, "draw_critic"), (triton_choice, "choose")]
    seen, own = (
        torch.empty_like(maps, dtype=torch.bfloat16)
        for maps in (
            builder._memory(state, config.network_sizes.actor_channels),
            builder._memory(state, len(config.observation.critic_only_channels)),
        )
    )
    with recorded(*kernels) as found:
        builder.actor(state, seen)
        builder.critic_only(state, actions, own)
        choose = ActionKernel(env.lattice, lambda: state)
        choose(logits, uniform, floor, actions, masks, probabilities)
    assert [name for name, *_ in found] == [name for _, name in kernels]
    return found


def launches_of_an_update(params: str, *overrides: str) -> list[Launch]:
    """Return the kernels that an update launches."""
    from marl_framework.algorithms import triton_losses
    from marl_framework.algorithms.loss_operators import TritonLosses
    from marl_framework.observations import triton_symmetry
    from marl_framework.observations.turning import TritonSymmetries

    config = load_config(params, overrides)
    sizes, learning = config.network_sizes, config.learning
    maps = torch.zeros(3, sizes.critic_channels, *sizes.shape, dtype=torch.bfloat16)
    actions = sizes.num_actions
    flown = Transitions(
        observations=maps[:, : sizes.actor_channels].contiguous(),
        critic_maps=maps[:, sizes.actor_channels :].contiguous(),
        actions=torch.zeros(3, dtype=torch.int64),
        masks=torch.ones(3, actions, dtype=torch.bool),
        old_probabilities=torch.ones(3, actions),
        targets=torch.zeros(3),
        weights=torch.ones(3) if config.has_inactive else None,
    )
    losses = TritonLosses(torch.device("cpu"))
    logits, one = torch.zeros(3, actions), torch.ones(())
    kernels = [(triton_symmetry, "take")]
    kernels += [(triton_losses, n) for n in ("judge", "lose_actor", "lose_critic", "decide")]
    with recorded(*kernels) as found:
        index = torch.zeros(3, dtype=torch.int64)
        TritonSymmetries(config, "cpu").take(flown, index, index)
        policy, _, advantages = losses.judge(logits, flown, logits, 0.1, flown.targets)
        clip, entropy = learning.clip_ratio, learning.entropy_coefficient
        losses.actor(policy, flown, advantages, 0.1, entropy, clip)
        losses.critic(logits, flown)
        losses.decide(one, one, one, 10.0)
    assert [name for name, *_ in found] == [name for _, name in kernels]
    return found


def launches_of_predictions(params: str, *overrides: str) -> list[Launch]:
    """Return the kernels that add up what a predictor sees."""
    from marl_framework.mission.kernels import part_operators, triton_parts

    rows, cols = load_config(params, overrides).map_shape
    ends = (torch.tensor([size // 2, size]) for size in (rows, cols))
    with recorded((triton_parts, "sum_parts")) as found:
        part_operators.sum_parts(torch.zeros(1, rows, cols), *ends)
    return found


def launches_of_a_network(params: str, *overrides: str) -> list[Launch]:
    """Return the kernels of convolutions and those that follow them, in all orders of memory."""
    from marl_framework.networks import triton_bias, triton_convolution

    config = load_config(params, overrides)
    width, sizes = config.networks.actor.conv_channels, config.network_sizes
    half, last = torch.bfloat16, torch.channels_last
    with recorded((triton_bias, "add_and_cut"), (triton_convolution, "convolve")) as found:
        for precision, order in (
            (torch.bfloat16, torch.channels_last),
            (torch.float32, torch.contiguous_format),
        ):
            maps = torch.zeros(2, width, 7, 7).to(precision, memory_format=order)
            triton_bias.bias_relu(maps, torch.zeros(width, dtype=precision))
        bias = torch.zeros(width, dtype=half)
        for maps, side, before in (
            (torch.zeros(2, sizes.actor_channels, *sizes.shape), 5, None),
            (torch.zeros(2, sizes.critic_channels, *sizes.shape, dtype=half), 5, None),
            (torch.zeros(2, width, 4, 4, dtype=half).to(memory_format=last), 4, bias),
        ):
            weights = torch.zeros(width, maps.shape[1], side, side, dtype=half)
            weights = weights.to(memory_format=last)
            triton_convolution.convolution_relu(maps, weights, bias, before)
    return found


@pytest.mark.parametrize(
    "launches",
    [
        launches_of_a_step,
        launches_of_an_update,
        launches_of_predictions,
        launches_of_a_network,
    ],
)
@pytest.mark.parametrize("teams", ["4", "[2, 4]"])
def test_kernels_compile_without_spills_and_atomics(
    launches: Callable[..., list[Launch]],
    teams: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = launches("params_gpu.yaml", f"experiment.missions.n_agents={teams}")
    for launch, architecture in product(found, ARCHITECTURES):
        check_machine_code(launch, architecture, tmp_path)


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
