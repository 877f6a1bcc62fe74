"""Means and gradients over all ranks.

A rank is one process of PyTorch's process group. Each flies the same number of missions, so a mean
of the ranks' means is the mean over everything. Without a process group there is one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DEVIATION_FLOOR = 1e-8
"""Added to the standard deviation by which advantages are divided."""


def number_of_ranks() -> int:
    """Return the number of processes that learn together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def mean_over_ranks(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all ranks, the same bits on each."""
    ranks = number_of_ranks()
    if ranks == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / ranks


def mean_of(numbers: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of numbers [B], each times its weight [B] if there are weights."""
    return numbers.mean() if weights is None else (numbers * weights).mean()


def normalized(advantages: Tensor, weights: Tensor | None = None, fused: bool = False) -> Tensor:
    """Return advantages [B] with mean 0 and standard deviation 1 over the batches of all ranks.

    The mean of `weights` [B] over these batches is 1. Fused, it takes fewer kernels on one rank.
    """
    if fused and weights is None and number_of_ranks() == 1:
        deviation, mean = torch.std_mean(advantages, correction=0)
        return (advantages - mean) / (deviation + DEVIATION_FLOOR)
    centred = advantages - mean_over_ranks(mean_of(advantages, weights))
    return centred / (mean_over_ranks(mean_of(centred.square(), weights)).sqrt() + DEVIATION_FLOOR)


def balanced(weights: Tensor | None) -> Tensor | None:
    """Return weights [B] scaled to a mean of 1 over the batches of all ranks; None as it is."""
    if weights is None:
        return None
    return weights / mean_over_ranks(weights.mean()).clamp(min=1e-9)


def means_over_ranks(
    values: Mapping[str, Tensor], spreads: Mapping[str, Tensor], counted: Tensor | None = None
) -> dict[str, Tensor]:
    """Return means of values and deviations of spreads over all ranks, by one exchange.

    In float64 on several ranks, or with `counted`, which numbers of spreads count, bool.
    """
    if number_of_ranks() == 1 and counted is None:
        return {**values, **{name: numbers.std() for name, numbers in spreads.items()}}
    tensors = {**values, **{name: power_sums(each, counted) for name, each in spreads.items()}}
    flat = mean_over_ranks(torch.cat([value.double().flatten() for value in tensors.values()]))
    parts = flat.split([value.numel() for value in tensors.values()])
    pairs = zip(tensors.items(), parts, strict=True)
    means = {name: part.view_as(value) for (name, value), part in pairs}
    return means | {name: variance_over_ranks(means[name]).sqrt() for name in spreads}


def power_sums(numbers: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the count of numbers [...], their sum and the sum of their squares, [3] float64.

    With `counted` [...], bool, of some of them.
    """
    numbers = numbers.detach().double()
    if counted is None:
        counted = torch.ones_like(numbers, dtype=torch.bool)
    numbers = numbers.where(counted, 0.0)
    return torch.stack((counted.sum().double(), numbers.sum(), numbers.square().sum()))


def variance_over_ranks(sums: Tensor) -> Tensor:
    """Return the variance [...] of numbers of all ranks from means of `power_sums`, [..., 3]."""
    count, total, squares = (sums * number_of_ranks()).unbind(-1)
    return (squares - total.square() / count).clamp(min=0) / (count - 1)


def with_shared_gradients(network: nn.Module, device: torch.device) -> nn.Module:
    """Return a network whose backward pass computes the mean gradient of all ranks.

    The network itself keeps the names of its parameters; save that one.
    """
    if number_of_ranks() == 1 or device.type == "meta":
        return network
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(network, device_ids=ids, gradient_as_bucket_view=True)


def exchange_gradients(network: nn.Module, *, now: bool) -> AbstractContextManager[None]:
    """Return a context for a forward and backward pass that exchanges gradients now, or later."""
    if now or not isinstance(network, DistributedDataParallel):
        return nullcontext()
    context: AbstractContextManager[None] = network.no_sync()
    return context
