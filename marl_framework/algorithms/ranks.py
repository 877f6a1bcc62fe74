"""Means and gradients over all ranks.

A rank is one process of PyTorch's process group, which `training.distributed` makes. Each flies
missions of its own; all have as many, so a mean of the ranks' means is the mean over everything.
Without a process group there is one rank, and nothing here does anything.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def number_of_ranks() -> int:
    """Return how many processes learn together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def mean_over_ranks(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all ranks, the same bits on each."""
    ranks = number_of_ranks()
    if ranks == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / ranks


def means_over_ranks(
    values: dict[str, Tensor],
    spreads: dict[str, Tensor] | None = None,
    counted: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return means and standard deviations over all ranks, by one exchange.

    Args:
        values: tensors to average, by name.
        spreads: numbers of this rank, by the name of their standard deviation.
        counted: which of these numbers count, bool; all without it.

    Returns:
        The mean of each value over the ranks; the standard deviation of the numbers of all ranks
        together. In float64 on several ranks.
    """
    spreads = spreads or {}
    if number_of_ranks() == 1 and counted is None:
        return values | {name: numbers.std() for name, numbers in spreads.items()}
    sums = {name: power_sums(numbers, counted) for name, numbers in spreads.items()}
    wanted = values | sums
    flat = mean_over_ranks(torch.cat([value.double().flatten() for value in wanted.values()]))
    parts = flat.split([value.numel() for value in wanted.values()])
    found = {
        name: part.view_as(value) for (name, value), part in zip(wanted.items(), parts, strict=True)
    }
    return found | {name: variance_over_ranks(found[name]).sqrt() for name in spreads}


def power_sums(numbers: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return how many numbers there are, their sum and the sum of their squares, [3] float64.

    Args:
        numbers: any shape.
        counted: which of them count, bool; all without it.
    """
    numbers = numbers.detach().double()
    if counted is not None:
        numbers = numbers.where(counted, 0.0)
        count = counted.sum().double()
    else:
        count = torch.full_like(numbers.sum(), numbers.numel())
    return torch.stack((count, numbers.sum(), numbers.square().sum()))


def variance_over_ranks(sums: Tensor) -> Tensor:
    """Return the variance of the numbers of all ranks together, [...] float64.

    A mean of the ranks' own variances lacks what lies between their means.

    Args:
        sums: means over the ranks of `power_sums`, [..., 3].
    """
    return variance(sums * number_of_ranks())


def variance(sums: Tensor) -> Tensor:
    """Return the variance of numbers, [...] float64, from their `power_sums` [..., 3]."""
    count, total, squares = sums.unbind(-1)
    return (squares - total.square() / count).clamp(min=0) / (count - 1)


def with_shared_gradients(network: nn.Module, device: torch.device) -> nn.Module:
    """Return a network whose backward pass leaves the mean gradient of all ranks.

    The network itself stays as it is, names of its parameters included: that one is saved. A
    network on the meta device holds no numbers to share.
    """
    if number_of_ranks() == 1 or device.type == "meta":
        return network
    return DistributedDataParallel(
        network,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )


def exchange_gradients(network: nn.Module, *, now: bool) -> AbstractContextManager[None]:
    """Return a context for a pass forward and back that exchanges gradients now, or only later.

    Micro-batches add their gradients up; one exchange, with the last of them, serves all.
    """
    if now or not isinstance(network, DistributedDataParallel):
        return nullcontext()
    context: AbstractContextManager[None] = network.no_sync()
    return context
