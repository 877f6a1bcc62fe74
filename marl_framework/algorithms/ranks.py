"""Means and gradients over all ranks.

A rank is one process of PyTorch's process group. Ranks fly equally many missions, so the mean of
their means is the overall mean. Without a process group there is one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DEVIATION_FLOOR = 1e-8
"""Constant added to the standard deviation when advantages are normalised."""


def number_of_ranks() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def mean_over_ranks(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all ranks, bitwise equal on each rank."""
    ranks = number_of_ranks()
    if ranks == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / ranks


def mean_of(numbers: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of numbers [B], or of numbers times weights [B] if given."""
    return numbers.mean() if weights is None else (numbers * weights).mean()


def normalized(advantages: Tensor, weights: Tensor | None = None, fused: bool = False) -> Tensor:
    """Scale advantages [B] to mean 0 and standard deviation 1 over the batches of all ranks.

    `weights` [B] must have a mean of 1 over these batches. `fused` saves kernels on one rank.
    """
    if fused and weights is None and number_of_ranks() == 1:
        deviation, mean = torch.std_mean(advantages, correction=0)
        return (advantages - mean) / (deviation + DEVIATION_FLOOR)
    centred = advantages - mean_over_ranks(mean_of(advantages, weights))
    return centred / (mean_over_ranks(mean_of(centred.square(), weights)).sqrt() + DEVIATION_FLOOR)


def balanced(weights: Tensor | None) -> Tensor | None:
    """Scale weights [B] to a mean of 1 over the batches of all ranks; None stays None."""
    if weights is None:
        return None
    return weights / mean_over_ranks(weights.mean()).clamp(min=1e-9)


def means_over_ranks(
    values: Mapping[str, Tensor], samples: Mapping[str, Tensor], counted: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the mean of values and standard deviation of samples over all ranks.

    One exchange serves both. `counted`, bool, selects the samples that count. Results are float64
    on several ranks, or if `counted` is given.
    """
    if number_of_ranks() == 1 and counted is None:
        spreads = {name: x.std(correction=min(1, len(x) - 1)) for name, x in samples.items()}
        return {**values, **spreads}
    tensors = {**values, **{name: power_sums(each, counted) for name, each in samples.items()}}
    flat = mean_over_ranks(torch.cat([value.double().flatten() for value in tensors.values()]))
    parts = flat.split([value.numel() for value in tensors.values()])
    pairs = zip(tensors.items(), parts, strict=True)
    means = {name: part.view_as(value) for (name, value), part in pairs}
    return means | {name: variance_over_ranks(means[name]).sqrt() for name in samples}


def power_sums(numbers: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the count, the sum and the sum of squares of numbers [...], [3] float64.

    `counted` [...], bool, selects numbers; None = all.
    """
    numbers = numbers.detach().double()
    if counted is None:
        counted = torch.ones_like(numbers, dtype=torch.bool)
    numbers = numbers.where(counted, 0.0)
    return torch.stack((counted.sum().double(), numbers.sum(), numbers.square().sum()))


def variance_over_ranks(sums: Tensor) -> Tensor:
    """Return the variance [...] over all ranks from means of `power_sums` [..., 3].

    It is 0 for fewer than two numbers.
    """
    count, total, squares = (sums * number_of_ranks()).unbind(-1)
    squared_errors = squares - total.square() / count.clamp(min=1)
    return squared_errors.clamp(min=0) / (count - 1).clamp(min=1)


def with_shared_gradients(network: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a network so that its backward pass averages gradients over all ranks.

    Save the unwrapped network; the wrapper changes the parameter names.
    """
    if number_of_ranks() == 1 or device.type == "meta":
        return network
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(network, device_ids=ids, gradient_as_bucket_view=True)


def exchange_gradients(network: nn.Module, *, now: bool) -> AbstractContextManager[None]:
    """Return a context for a pass that exchanges gradients `now`, or defers the exchange."""
    if now or not isinstance(network, DistributedDataParallel):
        return nullcontext()
    context: AbstractContextManager[None] = network.no_sync()
    return context
