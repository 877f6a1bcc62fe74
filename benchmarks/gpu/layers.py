"""Runs the actor with its Triton kernels and with cuDNN alone, and compares results and times.

    python -m benchmarks.gpu.layers [--device cuda:1]

On as many observations as fly at once. Both round to the networks' precision; how far that takes
either from float32 says whether the kernels compute the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.gpu.command_line import run_check
from benchmarks.helpers.harness import measure
from marl_framework.config.model import Config
from marl_framework.device import autocast, resolve_precision
from marl_framework.networks.convolutional import place, without_kernels
from marl_framework.networks.registry import make_actor

_SECONDS = 1.0
_TIMES = 2
"""How much farther from float32 the kernels may be than the plain layers."""


@torch.no_grad()
def check(config: Config, device: torch.device) -> tuple[bool, str]:
    """Say how long either takes, and how far it is from float32."""
    sizes = config.network_sizes
    torch.manual_seed(0)
    exact = make_actor(config.networks, config.compute, sizes).to(device)
    kernels = place(deepcopy(exact), config.compute, device)
    precision = resolve_precision(config.compute.precision, device)
    number = config.environment.num_envs * config.most_agents
    maps = torch.rand(number, sizes.actor_channels, *sizes.shape, device=device).to(precision)

    def act(network: nn.Module) -> Tensor:
        with autocast(device, precision):
            logits: Tensor = network(maps)
        return logits

    expected = exact(maps.float())
    spread = expected.std()
    errors, times = [], []
    for network in (kernels, without_kernels(kernels)):
        errors.append(float((act(network) - expected).abs().max() / spread))
        times.append(measure(partial(act, network), _SECONDS, device).median)
    return errors[0] <= _TIMES * errors[1] + 1e-4, (
        f"{number:,} observations: kernels {1e3 * times[0]:.2f} ms, plain layers "
        f"{1e3 * times[1]:.2f} ms; {errors[0]:.1%} and {errors[1]:.1%} of the logits' spread "
        "from float32"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return 0, 1 where the kernels compute something else, 2 for bad input."""
    return run_check("layers", check, arguments)


if __name__ == "__main__":
    sys.exit(main())
