"""The Triton kernels of updates, interpreted, against plain operators; schemas of all operators.

Not collected: `test_triton.py` runs this file with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import Losses, TritonLosses
from marl_framework.algorithms.optimisers import step_rule
from marl_framework.algorithms.policy import kl_divergence, policy_probabilities
from marl_framework.algorithms.ranks import balanced, mean_of, normalized
from marl_framework.kernels.cells import part_sums
from marl_framework.kernels.layers import rectify
from marl_framework.kernels.policies import BLOCK, choose_actions, descent_rule
from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import Fusion
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.symmetry import Symmetries
from tests.small import small_config

assert os.environ.get("TRITON_INTERPRET") == "1"

KERNELS = TritonLosses(torch.device("cpu"))
QUIET = settings(max_examples=4, suppress_health_check=list(HealthCheck))


def transitions(number: int, generator: torch.Generator, config: Any = None) -> Transitions:
    """Return transitions with any maps, masks and policy."""
    config = config or small_config()
    a, (x, y, _) = config.network_sizes.num_actions, config.geometry.lattice_shape
    seen, own = (
        len(names)
        for names in (config.observation.actor_channels, config.observation.critic_only_channels)
    )
    masks = torch.rand(number, a, generator=generator) < 0.6
    actions = torch.randint(a, (number,), generator=generator)
    masks.scatter_(1, actions.unsqueeze(1), True)
    policy = torch.rand(number, a, generator=generator) * masks + 1e-3 * masks
    critic_maps = torch.rand(number, own, x, y, generator=generator)
    names = config.observation.critic_only_channels
    if "other_actions" in names:
        codes = torch.randint(a + 1, (number, x, y), generator=generator) / a
        critic_maps[:, names.index("other_actions")] = codes
    return Transitions(
        observations=torch.rand(number, seen, x, y, generator=generator),
        critic_maps=critic_maps,
        actions=actions,
        masks=masks,
        old_probabilities=policy / policy.sum(1, keepdim=True),
        targets=torch.randn(number, generator=generator),
        teacher=masks / masks.sum(1, keepdim=True),
    )


def learned(losses: Losses, batch: Transitions, logits: Tensor, values: Tensor, way: Any) -> Any:
    """Return everything that a batch gives, gradients last."""
    epsilon, entropy, clip, takes_returns = way
    logits, values = logits.clone().requires_grad_(), values.clone().requires_grad_()
    floor = losses.convert_epsilon(epsilon)
    returns = batch.targets if takes_returns else None
    policy, probabilities, advantages = losses.compute_advantages(
        logits, batch, values.detach(), floor, returns
    )
    scaled = normalized(advantages, batch.weights, losses.fused)
    actor = losses.actor_loss(policy, batch, scaled, floor, entropy, clip)
    critic = losses.critic_loss(values, batch)
    kl = kl_divergence(batch.teacher, policy_probabilities(policy, batch.masks, floor))
    teacher_kl = mean_of(kl, batch.weights)
    (actor * 3 + critic * 2 + teacher_kl).backward()
    lost = (actor, critic, teacher_kl)
    return probabilities, advantages, scaled, *lost, logits.grad, values.grad


@given(
    number=st.sampled_from([2, 3, BLOCK, BLOCK + 1]),
    seed=st.integers(0, 2**30),
    epsilon=st.sampled_from([0.0, 0.1, 1.0]),
    entropy=st.sampled_from([0.0, 0.5]),
    clip=st.sampled_from([0.0, 0.2]),
    takes_returns=st.booleans(),
    all_act=st.booleans(),
)
@example(BLOCK + 1, 0, 0.1, 0.5, 0.2, True, True)
@example(BLOCK + 1, 0, 0.0, 0.5, 0.0, False, False)
@QUIET
def test_losses_and_gradients_are_those_of_autograd(
    number: int,
    seed: int,
    epsilon: float,
    entropy: float,
    clip: float,
    takes_returns: bool,
    all_act: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch = transitions(number, generator)
    if not all_act:
        acts = torch.rand(number, generator=generator) < 0.7
        batch = replace(batch, weights=balanced(acts.float()))
    logits, values = torch.randn(2, *batch.masks.shape, generator=generator)
    way = epsilon, entropy, clip, takes_returns
    expected = learned(Losses(), batch, logits * 3, values, way)
    found = learned(KERNELS, batch, logits * 3, values, way)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)


def test_an_action_that_the_policy_forbids_has_no_gradient_and_a_finite_loss() -> None:
    batch = transitions(4, torch.Generator().manual_seed(0))
    logits = torch.zeros(batch.masks.shape)
    logits.scatter_(1, batch.actions.unsqueeze(1), -1e4)  # its probability is 0
    way = 0.0, 0.0, 0.0, True
    values = torch.zeros_like(logits)
    expected, found = (learned(x, batch, logits, values, way) for x in (Losses(), KERNELS))
    assert found[3].isfinite()
    torch.testing.assert_close(found[3], expected[3])
    torch.testing.assert_close(found[5], expected[5])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's
@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_a_loss_with_nan_is_nan(clip: float) -> None:
    """Then the update is skipped."""
    batch = transitions(4, torch.Generator().manual_seed(0))
    logits = torch.zeros(batch.masks.shape)
    logits[1] = torch.nan
    way = 0.1, 0.0, clip, True
    for losses in (Losses(), KERNELS):
        assert learned(losses, batch, logits, torch.zeros_like(logits), way)[3].isnan()


def test_outputs_of_a_network_may_be_strided_and_of_half_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = transitions(5, generator)
    actions = batch.masks.shape[1]
    outputs = torch.randn(2, 5, actions + 1, generator=generator).half()
    found = []
    for losses in (KERNELS, Losses()):
        logits, values = (each.clone().requires_grad_() for each in outputs)
        floor, worth = losses.convert_epsilon(0.1), values[:, :actions]
        policy, probabilities, advantages = losses.compute_advantages(
            logits[:, :actions], batch, worth.detach(), floor, None
        )
        loss = losses.actor_loss(policy, batch, advantages, floor, 0.5, 0.2)
        loss = loss + losses.critic_loss(worth, batch)
        loss.backward()
        found.append((probabilities, advantages, loss, logits.grad, values.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of what is infinite
def test_ignored_transitions_have_no_gradient_however_steep() -> None:
    batch = transitions(2, torch.Generator().manual_seed(0))
    actions, masks = torch.tensor([0, 1]), torch.ones_like(batch.masks)
    weights = torch.tensor([1.0, 0.0])
    batch = replace(batch, actions=actions, masks=masks, weights=balanced(weights))
    logits = torch.zeros(masks.shape)
    logits[1, 1] = -75.0
    gradients = []
    for losses in (KERNELS, Losses()):
        given = logits.clone().requires_grad_()
        policy, _, _ = losses.compute_advantages(
            given, batch, logits, losses.convert_epsilon(0.0), batch.targets
        )
        losses.actor_loss(policy, batch, torch.tensor([0.0, 2e8]), 0.0, 0.0, 0.0).backward()
        gradients.append(given.grad)
    assert gradients[0].equal(gradients[1])
    assert not gradients[0].any()


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 12, 3, 4), (30, 64, 7, 7), (2, 300, 4, 4)])
def test_bias_and_relu_are_those_of_plain_operators(
    shape: tuple[int, ...], precision: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(shape, generator=generator).to(precision)
    maps[0, 0, 0, 0] = torch.nan
    found = maps.contiguous(memory_format=torch.channels_last)
    bias = torch.randn(shape[1], generator=generator).to(precision)
    rectify(found, bias)
    expected = (maps + bias.view(-1, 1, 1)).relu()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("halted", [None, 0.0, 1.0])
@pytest.mark.parametrize("number", [0.5, 30.0, float("inf"), float("nan")])
def test_descent_rules_agree(number: float, halted: float | None) -> None:
    stop = None if halted is None else torch.tensor(halted)
    for loss, norm in ((1.0, number), (number, 2.0)):
        given = torch.tensor(loss), torch.tensor(norm), stop, 10.0
        for ours, theirs in zip(descent_rule(*given), step_rule(*given), strict=True):
            assert ours.equal(theirs.float()) or (ours.isnan() and theirs.isnan())


@pytest.mark.parametrize(
    "options",
    [
        {"dims": (30.0, 30.0)},
        {"dims": (60.0, 60.0), "actions": 27, "observation": {"other_actions": False}},
        {"dims": (20.0, 40.0), "actions": 9, "observation": {"uncertainty": True}},
    ],
)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_turned_transitions_are_those_of_plain_operators(
    options: dict[str, Any], precision: torch.dtype
) -> None:
    config = small_config(**options)
    generator = torch.Generator().manual_seed(1)
    plain, kernel = (Symmetries(config, "cpu", in_kernel) for in_kernel in (False, True))
    flown = replace(transitions(9, generator, config), one_step=torch.arange(9.0))
    flown.observations = flown.observations.to(precision)
    flown.critic_maps = flown.critic_maps.to(precision)
    index = torch.randperm(9, generator=generator).repeat(2)[:12]
    which = plain.draw(len(index), generator)
    found, expected = kernel.take(flown, index, which), plain.take(flown, index, which)
    last_bit = 0 if precision == torch.float32 else 2**-7  # the interpreter cuts, a GPU rounds
    for name, tensor in expected.tensors().items():
        off = last_bit if name == "critic_maps" else 0
        torch.testing.assert_close(getattr(found, name), tensor, rtol=off, atol=0, msg=name)
    assert found.critic_inputs.equal(torch.cat((found.observations, found.critic_maps), 1))
    first, second = found[:7], found[7:]
    assert torch.cat((first.critic_inputs, second.critic_inputs)).equal(found.critic_inputs)


OPERATORS = {
    "read_windows", "fuse_own", "fuse_global", "draw_actor_maps", "draw_critic_maps",
    "choose_actions", "sum_parts", "take_turned", "policy_advantages", "actor_gradient",
    "critic_gradient", "descent_rule",
}  # fmt: skip


class Recorder(TorchDispatchMode):
    """Keeps the arguments of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "marl_framework":
            copies = tree_map(lambda a: a.clone() if isinstance(a, Tensor) else a, args)
            self.calls[func.overloadpacket._qualified_op_name.split("::")[1]] = func, copies
        return func(*args, **(kwargs or {}))


@pytest.mark.soak
def test_operators_keep_the_promises_of_their_schemas() -> None:
    config = small_config(compute={"compile": False}, dims=(10.0, 10.0), pixels=(6, 6), agents=2)
    env = MissionEnvironment(config, 2, "cpu")
    state, draws = env.reset(), env.draw_step()
    builder = ObservationBuilder(config, env.lattice, env.camera, Version.TRITON)
    actions, mask = torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2, 6, dtype=torch.bool)
    logits, uniform, probabilities = torch.rand(3, 2, 2, 6)
    floor, one = torch.tensor(0.1, dtype=torch.float64), torch.ones(())
    losses = TritonLosses(torch.device("cpu"))
    with Recorder() as recorder:
        fusion = Fusion(config, env.camera, Version.TRITON)
        fusion.update(state, draws.sensor, torch.ones(2, dtype=torch.bool))
        seen, own = builder.actor(state), builder.critic_only(state, actions)
        missions = state.positions, state.moves, state.active, env.lattice.offsets
        choose_actions(logits, uniform, floor, *missions, actions, mask, probabilities)
        part_sums(Version.TRITON, torch.rand(2, 5, 4), torch.tensor([2, 5]), torch.tensor([4]))
        flown = Transitions(
            seen.flatten(0, 1),
            own.flatten(0, 1),
            actions.flatten(),
            mask.flatten(0, 1),
            probabilities.flatten(0, 1),
            targets=torch.rand(4),
        )
        index = torch.arange(4)
        batch = Symmetries(config, "cpu", in_kernel=True).take(flown, index, index)
        outputs = logits.flatten(0, 1)
        policy, _, advantages = losses.compute_advantages(
            outputs, batch, outputs, floor, batch.targets
        )
        losses.actor_loss(policy, batch, advantages, floor, 0.1, 0.2)
        losses.critic_loss(outputs, batch)
        losses.step_rule(one, one, None, 10.0)
    assert set(recorder.calls) == OPERATORS
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for operator, arguments in recorder.calls.values():
        torch.library.opcheck(operator, arguments, test_utils=tests)
