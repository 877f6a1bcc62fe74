"""Launches of Triton kernels in a training, recorded on the CPU without running the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import torch

from benchmarks.helpers.machine_code import Launch, recorded
from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import TritonLosses
from marl_framework.config.model import Config
from marl_framework.kernels.cells import part_sums
from marl_framework.kernels.layers import rectify
from marl_framework.kernels.policies import choose_actions
from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import Fusion
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.symmetry import Symmetries

CPU = torch.device("cpu")
HALF = torch.bfloat16


def _record_launches(work: Callable[[], object], **kernels: str) -> list[Launch]:
    """Call `work`; return its launches of `kernels`, given as contract="name name"."""
    recordable = [
        (import_module(f"marl_framework.kernels.{contract}_triton"), name)
        for contract, names in kernels.items()
        for name in names.split()
    ]
    with recorded(*recordable) as launches:
        work()
    return launches


def of_windows(config: Config, work: Callable[[Fusion, MissionState], object]) -> list[Launch]:
    """Return the launches of window kernels by `work`."""
    env = MissionEnvironment(config, 1, CPU)
    fusion = Fusion(config, env.camera, Version.TRITON)
    return _record_launches(lambda: work(fusion, env.empty_state()), windows="read fuse add_parts")


def _of_a_belief_update(config: Config, blank: bool) -> list[Launch]:
    keys, active = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool)
    return of_windows(config, lambda fusion, state: fusion.update(state, keys, active, blank))


def of_a_choice(config: Config) -> list[Launch]:
    """Return the launches for observations, actions and critic maps."""
    env = MissionEnvironment(config, 1, CPU)
    builder = ObservationBuilder(config, env.lattice, env.camera, Version.TRITON)
    sizes, state = config.network_sizes, env.empty_state()
    shape = (1, env.n_agents, env.lattice.num_actions)
    critic_only = sizes.critic_channels - sizes.actor_channels
    observations, maps = (
        torch.zeros(*shape[:2], channels, *sizes.shape, dtype=HALF)
        for channels in (sizes.actor_channels, critic_only)
    )
    actions = torch.zeros(shape[:2], dtype=torch.int64)
    logits, uniform, probabilities = torch.zeros(3, *shape)
    floor, masks = torch.zeros((), dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)

    def step() -> None:
        builder.actor(state, observations)
        missions = state.positions, state.moves, state.active, env.lattice.offsets
        choose_actions(logits, uniform, floor, *missions, actions, masks, probabilities)
        builder.critic_only(state, actions, maps)

    return _record_launches(step, maps="draw_actor draw_critic show", policies="choose")


def of_predictions(config: Config) -> list[Launch]:
    """Return the launches that sum up a predictor's inputs."""
    rows, cols = config.geometry.map_shape
    ends = [torch.tensor([size // 2, size]) for size in (rows, cols)]
    maps = torch.zeros(1, rows, cols)
    return _record_launches(lambda: part_sums(Version.TRITON, maps, *ends), cells="sum_parts")


def of_an_update(config: Config) -> list[Launch]:
    """Return the launches for batches, losses and gradient steps."""
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
    losses, symmetries = TritonLosses(CPU), Symmetries(config, CPU, in_kernel=True)
    logits, one, index = torch.zeros(3, actions), torch.ones(()), torch.zeros(3, dtype=torch.int64)

    def update() -> None:
        symmetries.take(flown, index, index)
        policy, _, advantages = losses.compute_advantages(logits, flown, logits, 0.1, flown.targets)
        clip, entropy = learning.clip_ratio, learning.entropy_coefficient
        losses.actor_loss(policy, flown, advantages, 0.1, entropy, clip)
        losses.critic_loss(logits, flown)
        losses.step_rule(one, one, one, 10.0)
        outputs = torch.zeros(3, config.networks.actor.conv_channels, 7, 7, dtype=HALF)
        rectify(outputs.contiguous(memory_format=torch.channels_last), outputs[0, :, 0, 0].clone())

    names = "advantages actor_loss critic_loss descent_rule"
    return _record_launches(update, maps="take", policies=names, layers="rectify")


STAGES: dict[str, Callable[[Config], list[Launch]]] = {
    "start of missions": partial(_of_a_belief_update, blank=True),
    "readings and beliefs": partial(_of_a_belief_update, blank=False),
    "observations and actions": of_a_choice,
    "predictions": of_predictions,
    "updates": of_an_update,
}
"""Functions that return launches, by stage of a training."""
