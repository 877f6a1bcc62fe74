"""Runs the networks with their Triton kernels and with cuDNN alone, and compares both.

    python -m benchmarks.gpu.layers [--device cuda:1]

On as many observations as fly at once. Either rounds to the networks' precision; how far that takes
outputs and gradients from float32 says whether the kernels compute the same. Each layer that is a
kernel of ours is timed by itself, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from benchmarks.gpu.command_line import run_check
from benchmarks.helpers.harness import measure, table_text
from marl_framework.config.model import Config
from marl_framework.device import autocast, configure_backends, resolve_precision
from marl_framework.networks.convolutional import HiddenLayers, place, without_kernels
from marl_framework.networks.registry import make_actor, make_critic

_SECONDS = 0.5
_TIMES = 2
"""How much farther from float32 kernels may be than plain layers."""

Work = Callable[[], object]


def check(config: Config, device: torch.device) -> tuple[bool, str]:
    """Print what takes how long; say how far the networks are from float32."""
    sizes, compute = config.network_sizes, config.compute
    precision = resolve_precision(compute.precision, device)
    number = config.environment.num_envs * config.missions.most_agents
    well, found = True, []
    rows: list[tuple[str, ...]] = []
    for role, make, channels in (
        ("actor", make_actor, sizes.actor_channels),
        ("critic", make_critic, sizes.critic_channels),
    ):
        torch.manual_seed(0)
        exact = make(config.networks, compute, sizes).to(device)
        kernels = place(deepcopy(exact), compute, device)
        plain = without_kernels(kernels)
        maps = torch.rand(number, channels, *sizes.shape, device=device).to(precision)
        configure_backends(compute.model_copy(update={"tf32": False}), device)
        expected = _learn(exact, maps.float(), torch.float32)
        configure_backends(compute, device)
        ours, theirs = (_distance(_learn(n, maps, precision), expected) for n in (kernels, plain))
        well &= ours <= _TIMES * theirs + 1e-4
        found.append(f"{role} {ours:.2%} from float32, plain {theirs:.2%}")
        acting, plainly = (partial(_act, network, maps, precision) for network in (kernels, plain))
        works: list[tuple[str, Work, Work]] = [("all layers", acting, plainly)]
        works += _layers(kernels, maps, precision)
        for name, *pair in works:
            times = (measure(work, _SECONDS, device).median for work in pair)
            rows.append((f"{role}: {name}", *(f"{1e3 * seconds:.3f} ms" for seconds in times)))
    print(table_text(f"{number:,} observations", ("", "kernels", "plain"), rows))
    return well, "; ".join((*found, f"{rows[0][0]} {rows[0][1]}, plain {rows[0][2]}"))


@torch.no_grad()
def _act(network: nn.Module, maps: Tensor, precision: torch.dtype) -> Tensor:
    with autocast(maps.device, precision):
        outputs: Tensor = network(maps)
    return outputs


def _learn(network: nn.Module, maps: Tensor, precision: torch.dtype) -> list[Tensor]:
    """Return outputs and gradients."""
    network.zero_grad()
    with autocast(maps.device, precision):
        outputs: Tensor = network(maps)
    outputs.square().mean().backward()
    return [outputs.detach(), *(w.grad for w in network.parameters() if w.grad is not None)]


def _distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference of tensors, each as a share of its own size."""
    pairs = zip(found, expected, strict=True)
    return max(float((ours - exact).norm() / exact.norm()) for ours, exact in pairs)


@torch.no_grad()
def _layers(
    network: nn.Module, maps: Tensor, precision: torch.dtype
) -> Iterator[tuple[str, Work, Work]]:
    """Yield the layers that are kernels: a name, our work and that of cuDNN and plain operators."""
    layers = next((each for each in network.modules() if isinstance(each, HiddenLayers)), None)
    if layers is None or not layers.convolutions[0].fused or precision == torch.float32:
        return
    from marl_framework.networks.triton_convolution import convolution_relu

    (w1, b1), (w2, b2), (w3, b3) = (
        (weights.to(precision) for weights in layer.parameters()) for layer in layers.convolutions
    )
    maps = maps[:, -w1.shape[1] :]  # after planes of UAVs that are heard
    last = torch.channels_last
    yield (
        "first layer",
        lambda: convolution_relu(maps, w1.contiguous(), b1, None),
        lambda: relu(conv2d(maps.to(memory_format=last), w1, b1)),
    )
    second = conv2d(relu(conv2d(maps.to(memory_format=last), w1, b1)), w2)
    if second.shape[2:] == w3.shape[2:]:
        yield (
            "last convolution",
            lambda: convolution_relu(second, w3, b3, b2),
            lambda: relu(conv2d(relu(second + b2[:, None, None]), w3, b3)),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return 0, 1 where the kernels compute something else, 2 for bad input."""
    return run_check("layers", check, arguments)


if __name__ == "__main__":
    sys.exit(main())
