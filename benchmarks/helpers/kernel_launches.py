"""The launches of Triton kernels in a training, recorded on the CPU without running them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.helpers.machine_code import Launch, recorded
from marl_framework.algorithms.batch import Transitions
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import TritonFusion
from marl_framework.mission.state import MissionState
from marl_framework.observations.kernels import ActionKernel, TritonBuilder

CPU = torch.device("cpu")
HALF = torch.bfloat16


def of_windows(
    config: Config, work: Callable[[TritonFusion, MissionState], object]
) -> list[Launch]:
    """Return the kernels that some work on windows launches."""
    from marl_framework.mission.kernels import triton_windows

    env = MissionEnvironment(config, 1, CPU)
    fusion = TritonFusion(config, env.camera)
    with recorded(*((triton_windows, name) for name in ("read", "fuse", "add_parts"))) as found:
        work(fusion, env._empty_state())
    return found


def of_a_start(config: Config) -> list[Launch]:
    """Return the kernels that missions start with."""
    keys = torch.zeros(1, dtype=torch.int64)
    return of_windows(config, lambda fusion, state: fusion.begin(state, keys, None))


def of_a_move(config: Config) -> list[Launch]:
    """Return the kernels that take readings into beliefs."""
    keys, flown = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool)
    return of_windows(config, lambda fusion, state: fusion.update(state, keys, flown))


def of_a_choice(config: Config) -> list[Launch]:
    """Return the kernels of observations, of actions and of critic maps."""
    from marl_framework.mission.kernels import triton_choice, triton_maps

    env = MissionEnvironment(config, 1, CPU)
    builder, state = TritonBuilder(config, env.lattice, env.camera), env._empty_state()
    sizes, shape = config.network_sizes, (1, env.n_agents, env.lattice.num_actions)
    own = sizes.critic_channels - sizes.actor_channels
    seen, maps = (
        torch.zeros(*shape[:2], channels, *sizes.shape, dtype=HALF)
        for channels in (sizes.actor_channels, own)
    )
    actions = torch.zeros(shape[:2], dtype=torch.int64)
    logits, uniform, probabilities = torch.zeros(3, *shape)
    floor, masks = torch.zeros((), dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)
    kernels = [(triton_maps, "draw_actor"), (triton_choice, "choose"), (triton_maps, "draw_critic")]
    with recorded(*kernels) as found:
        builder.actor(state, seen)
        choose = ActionKernel(env.lattice, lambda: state)
        choose(logits, uniform, floor, actions, masks, probabilities)
        builder.critic_only(state, actions, maps)
    return found


def of_predictions(config: Config) -> list[Launch]:
    """Return the kernels that add up what a predictor sees."""
    from marl_framework.mission.kernels import part_operators, triton_parts

    rows, cols = config.geometry.map_shape
    ends = (torch.tensor([size // 2, size]) for size in (rows, cols))
    with recorded((triton_parts, "sum_parts")) as found:
        part_operators.sum_parts(torch.zeros(1, rows, cols), *ends)
    return found


def of_an_update(config: Config) -> list[Launch]:
    """Return the kernels of batches, losses and descent."""
    from marl_framework.algorithms import triton_losses
    from marl_framework.algorithms.loss_operators import TritonLosses
    from marl_framework.observations import triton_symmetry
    from marl_framework.observations.turning import TritonSymmetries

    sizes, learning = config.network_sizes, config.learning
    maps = torch.zeros(3, sizes.critic_channels, *sizes.shape, dtype=HALF)
    actions = sizes.num_actions
    flown = Transitions(
        observations=maps[:, : sizes.actor_channels].contiguous(),
        critic_maps=maps[:, sizes.actor_channels :].contiguous(),
        actions=torch.zeros(3, dtype=torch.int64),
        masks=torch.ones(3, actions, dtype=torch.bool),
        old_probabilities=torch.ones(3, actions),
        targets=torch.zeros(3),
        weights=torch.ones(3) if config.missions.has_inactive else None,
    )
    losses = TritonLosses(CPU)
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
    return found


STAGES = {
    "start of missions": of_a_start,
    "readings and beliefs": of_a_move,
    "observations and actions": of_a_choice,
    "predictions": of_predictions,
    "updates": of_an_update,
}
"""What launches kernels, by the part of a training."""
