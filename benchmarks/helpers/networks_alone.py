"""The network calls of one training step, made alone, and the matrix products in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.helpers.harness import fastest
from marl_framework.algorithms.actor_critic import target_chunk
from marl_framework.config.model import Config
from marl_framework.device import autocast, resolve_precision
from marl_framework.networks.convolutional import place
from marl_framework.networks.registry import make_actor, make_critic
from marl_framework.stage_timer import StageTimer

_TRIES = 5


def flops_of(work: Callable[[], object]) -> int:
    """Count the floating-point operations of matrix products and convolutions in `work()`."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


@dataclass(frozen=True)
class NetworkCalls:
    """Batch sizes of all network calls of one training step."""

    inference: tuple[int, ...]
    """Batch sizes of the actor during rollouts."""
    targets: tuple[int, ...]
    """Batch sizes of the target critic."""
    learning: tuple[int, ...]
    """Batch sizes of critic and actor, forward and backward."""

    @classmethod
    def of(cls, config: Config, device: torch.device) -> NetworkCalls:
        """Return the batch sizes for a configuration on a device."""
        learning = config.learning
        team = config.environment.num_envs * config.missions.most_agents
        rollouts = config.schedule.rollouts_per_step
        transitions = config.schedule.transitions_per_step
        places = torch.arange(transitions)
        batches = places.tensor_split(min(learning.batch_number, transitions))
        return cls(
            inference=(team,) * (rollouts * config.missions.episode_length),
            targets=tuple(len(part) for part in places.split(target_chunk(device))),
            learning=tuple(len(part) for part in batches) * learning.data_passes,
        )


class NetworksAlone:
    """Makes the network calls of one training step, with plain modules.

    Args:
        config: configuration with sizes, schedule and precision.
        device: device of the networks.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        sizes = config.network_sizes
        self.calls = NetworkCalls.of(config, device)
        self._config = config
        self._device = device
        self._precision = resolve_precision(config.compute.precision, device)
        networks, compute = config.networks, config.compute
        self._actor = place(make_actor(networks, compute, sizes), compute, device)
        self._critic = place(make_critic(networks, compute, sizes), compute, device)
        most = max(*self.calls.inference, *self.calls.targets, *self.calls.learning)
        shape = (most, sizes.critic_channels, *sizes.shape)
        self._states = torch.rand(shape, device=device).to(self._precision)  # as in rollouts
        self._observations = self._states[:, : sizes.actor_channels].contiguous()

    def seconds(self) -> dict[str, float]:
        """Make all calls once; return the seconds of `inference`, `targets` and `learning`."""
        timer = StageTimer(self._device)
        with timer("inference"), torch.no_grad():
            for size in self.calls.inference:
                self._forward(self._actor, self._observations[:size])
        with timer("targets"), torch.no_grad():
            for size in self.calls.targets:
                self._forward(self._critic, self._states[:size])
        with timer("learning"):
            for size in self.calls.learning:
                self._learn(self._critic, self._states[:size])
                self._learn(self._actor, self._observations[:size])
        return timer.seconds()

    def flops(self) -> int:
        """Count floating-point operations of all calls as convolutions (2 per multiply-add)."""
        return flops_of(NetworksAlone(self._config, torch.device("meta")).seconds)

    def product_rate(self) -> float:
        """Return the operations per second of the layers' matrix products on this machine.

        Of the largest batch that learns, each product is made alone: forward, and for the gradients
        of weights and inputs.
        """
        flops, seconds = 0, 0.0
        rows = max(self.calls.learning)
        for network, maps in ((self._actor, self._observations), (self._critic, self._states)):
            for _, layer, _, outputs in layers_called(network, maps[:1].float()):
                n, k = len(layer.weight), layer.weight[0].numel()
                m = outputs.numel() // n
                for sides in ((rows * m, k, n), (n, rows * m, k), (rows * m, n, k)):
                    flops += 2 * math.prod(sides)
                    seconds += product_seconds(*sides, self._precision, self._device)
        return flops / seconds

    def _forward(self, network: nn.Module, maps: Tensor) -> Tensor:
        with autocast(self._device, self._precision):
            outputs: Tensor = network(maps)
        return outputs

    def _learn(self, network: nn.Module, maps: Tensor) -> None:
        network.zero_grad(set_to_none=True)
        outputs = self._forward(network, maps)
        outputs.backward(torch.ones_like(outputs))


def layers_called(
    network: nn.Module, maps: Tensor
) -> list[tuple[str, nn.Conv2d | nn.Linear, Tensor, Tensor]]:
    """Return name, module, inputs and outputs of each layer with products, in order of calls."""
    found: list[tuple[str, nn.Conv2d | nn.Linear, Tensor, Tensor]] = []
    names = {m: n for n, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}

    def note(layer: Any, arguments: tuple[Tensor], outputs: Tensor) -> None:
        found.append((names[layer], layer, arguments[0], outputs))

    hooks = [layer.register_forward_hook(note) for layer in names]
    with torch.no_grad():
        network(maps)
    for hook in hooks:
        hook.remove()
    return found


def product_seconds(m: int, k: int, n: int, precision: torch.dtype, device: torch.device) -> float:
    """Return the duration of a product of matrices [m, k] and [k, n] in its fastest way [s].

    On a CPU that is PyTorch's product or oneDNN's, which PyTorch does not use for all processors.
    """
    a, b = (torch.rand(shape, device=device).to(precision) for shape in ((m, k), (k, n)))
    ways: list[Callable[[], object]] = [lambda: a @ b]
    if device.type == "cpu" and torch.backends.mkldnn.is_available():
        weight = b.t().contiguous()
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(a, weight, None, "none", [], ""))
    return min(fastest(way, _TRIES, device) for way in ways)
