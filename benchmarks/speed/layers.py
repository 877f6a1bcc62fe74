"""Time each layer of the networks alone, forward and backward: `python -m benchmarks.speed.layers`.

Each layer of actor and critic gets a batch of the size that learns, in the precision of training.
Convolutions, with ReLU, are computed in all ways, see `networks.layers.Way`; the first also with
its input channels padded to a multiple of 8, as tensor cores need them in half precision. Gradients
are those of training: of weights and biases, and, except in the first layer, of the inputs.

On a GPU, events time several calls in a row. Rates count 2 operations per multiply-add, and no
padding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.networks_alone import NetworkCalls, layers_called
from benchmarks.helpers.text import duration_text, table_text
from marl_framework.config.model import Config
from marl_framework.device import autocast, resolve_precision
from marl_framework.networks.layers import Convolution, Way
from marl_framework.networks.registry import make_actor, make_critic
from marl_framework.stage_timer import StageTimer

_PASSES = ("forward", "backward")
_CALLS = {"cpu": 1, "cuda": 10}  # number of calls in a row, by type of device
_LEAST = 3  # number of times that they are timed
_LINEAR, _PADDED = "linear", "channels_last, padded"
_CHANNELS = 8  # a multiple of this number of bfloat16 values fills the loads of tensor cores

Work = tuple[Callable[[], Tensor], Callable[[Tensor], object]]


class Layer(NamedTuple):
    """A layer of a network, with the shape and precision of its inputs."""

    network: str
    name: str
    module: nn.Conv2d | nn.Linear
    shape: torch.Size
    """Shape of the inputs for one sample, the samples first."""
    dtype: torch.dtype
    flops: int
    """Operations of the forward pass for one sample."""
    is_first: bool
    """Whether the inputs need no gradient."""


def measure(job: Job) -> dict[str, Any]:
    """Time all layers.

    Returns:
        `settings`; `rows` with `network`, `layer`, `way`, `forward_seconds`, `backward_seconds`,
        `forward_flops` and `backward_flops`; and `seconds_of_convolutions`: forward and backward of
        all convolutions, by way.
    """
    device = job.device
    precision = resolve_precision(job.config.compute.precision, device)
    batch = max(NetworkCalls.of(job.config, device).learning)
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {
        "settings": {
            "batch": batch,
            "precision": str(precision).removeprefix("torch."),
            "seconds_per_row": job.options.seconds_per_row,
        },
        "rows": rows,
    }
    for layer in layers_of(job.config, precision):
        for way in _ways_of(layer):
            work = _make_calls(layer, way, batch, device)
            forward, backward = time_passes(work, job.options.seconds_per_row, device)
            flops = batch * layer.flops
            rows.append(
                {
                    "network": layer.network,
                    "layer": layer.name,
                    "way": way,
                    "forward_seconds": forward,
                    "backward_seconds": backward,
                    "forward_flops": flops,
                    "backward_flops": flops if layer.is_first else 2 * flops,
                }
            )
            results["seconds_of_convolutions"] = {
                way.value: sum(
                    row["forward_seconds"] + row["backward_seconds"]
                    for row in rows
                    if row["way"] == way.value
                )
                for way in Way
            }
            job.save(results)
    return results


def layers_of(config: Config, precision: torch.dtype) -> list[Layer]:
    """Return the layers of actor and critic in the order of their calls."""
    sizes, found = config.network_sizes, list[Layer]()
    for name, make in (("actor", make_actor), ("critic", make_critic)):
        network = make(config.networks, config.compute, sizes)
        maps = torch.zeros(1, sizes.channels(name), *sizes.shape, dtype=precision)
        with autocast(maps.device, maps.dtype):
            called = layers_called(network, maps)
        for number, (layer, module, inputs, outputs) in enumerate(called):
            flops = 2 * outputs.numel() * module.weight[0].numel()
            described = name, layer, module, inputs.shape, inputs.dtype, flops
            found.append(Layer(*described, is_first=number == 0))
    return found


def _ways_of(layer: Layer) -> list[str]:
    if isinstance(layer.module, nn.Linear):
        return [_LINEAR]
    padded = layer.is_first and layer.module.in_channels % _CHANNELS != 0
    return [*(way.value for way in Way), *([_PADDED] if padded else [])]


def _make_calls(layer: Layer, way: str, batch: int, device: torch.device) -> Work:
    """Return functions that make the forward pass, and with its outputs the backward pass."""
    samples, *shape = layer.shape
    module: Any = layer.module
    if isinstance(module, nn.Conv2d):
        if way == _PADDED:
            shape[0] += -shape[0] % _CHANNELS
        # `Convolution` itself may choose another way on a GPU.
        kind = Convolution if way == Way.PRODUCT.value else nn.Conv2d
        rows, cols = module.kernel_size
        module = kind(shape[0], module.out_channels, (rows, cols))
        if isinstance(module, Convolution):
            module.use(Way.PRODUCT)
        else:  # `Convolution` includes it
            module = nn.Sequential(module, nn.ReLU())
    module = module.to(device, layer.dtype)
    inputs = torch.rand(batch * samples, *shape, device=device).to(layer.dtype)
    if inputs.dim() == 4 and way != Way.CONVOLUTION.value:
        module = module.to(memory_format=torch.channels_last)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    inputs.requires_grad_(not layer.is_first)
    wanted = [*module.parameters(), *([] if layer.is_first else [inputs])]
    gradient = torch.ones_like(module(inputs))
    return (
        lambda: module(inputs),
        lambda outputs: torch.autograd.grad(outputs, wanted, gradient),
    )


def time_passes(work: Work, seconds: float, device: torch.device) -> tuple[float, float]:
    """Return the duration of a forward and a backward pass [s], medians."""
    forward, backward = work
    timer, spent = StageTimer(device), list[dict[str, float]]()
    number = _CALLS[device.type]

    def calls() -> None:
        for _ in range(number):
            with timer("forward"):
                outputs = forward()
            with timer("backward"):
                backward(outputs)
        spent.append(timer.seconds())
        timer.reset()

    calls()  # warms up
    spent.clear()
    while len(spent) < _LEAST or timer.wall(total=True) < seconds:
        calls()
    first, second = (median(each[name] / number for each in spent) for name in _PASSES)
    return first, second


def table(results: dict[str, Any]) -> str:
    """Return the results as text."""
    lines = []
    for row in results["rows"]:
        spent = [row[f"{name}_seconds"] for name in _PASSES]
        rates = [row[f"{name}_flops"] / t / 1e12 for name, t in zip(_PASSES, spent, strict=True)]
        lines.append(
            (
                *(row[name] for name in ("network", "layer", "way")),
                *map(duration_text, spent),
                *(f"{rate:,.3g}" for rate in rates),
            )
        )
    header = ("network", "layer", "way", *_PASSES, *(f"{name} TFLOP/s" for name in _PASSES))
    settings = results["settings"]
    title = f"Layers alone, {settings['batch']:,} samples in {settings['precision']}"
    return table_text(title, header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    description = "Time each layer of the networks, forward and backward."
    parser = Parser("speed.layers", description, "params_gpu.yaml")
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
