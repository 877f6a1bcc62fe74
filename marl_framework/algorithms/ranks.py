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


def means_over_ranks(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the means of named scalars over all ranks, by one exchange."""
    if number_of_ranks() == 1:
        return values
    stacked = mean_over_ranks(torch.stack([value.double() for value in values.values()]))
    return dict(zip(values, stacked.unbind(), strict=True))


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
