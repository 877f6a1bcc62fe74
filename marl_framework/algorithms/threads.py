"""Work on a CPU: a share of the batch for each core, on threads that never wait for each other.

PyTorch splits every operation among all threads. In bfloat16 the threads of oneDNN's backward
convolution wait for each other thousands of times a pass. If another process uses one of the cores,
training becomes a hundred times slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

LEAST = 64  # rows of a share; for fewer, all threads together are faster

T = TypeVar("T")


def shares_of(rows: int) -> int:
    """Return the number of threads that share a batch; below 2 it stays whole."""
    return min(torch.get_num_threads(), rows // LEAST)


def with_batch_threads(network: nn.Module, device: torch.device) -> nn.Module:
    """Return a network whose passes give each thread a share of the batch, on a CPU.

    Only networks with `independent_rows = True` are shared: each row of the output depends on one
    row of the input, nothing is drawn at random, and no buffer changes.
    """
    if device.type == "cpu" and getattr(network, "independent_rows", False):
        return _BatchThreads(network)
    return network


class _BatchThreads(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Tensor) -> Tensor:
        shares = shares_of(len(rows))
        if shares < 2:
            output: Tensor = self.network(rows)
            return output
        if not torch.is_grad_enabled():
            return torch.cat(_forward(self.network, rows, shares, learns=False))
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        divided: Tensor = _Divided.apply(self.network, rows, shares, *parameters)
        return divided


class _Divided(torch.autograd.Function):
    """Forward and backward pass of all shares; gradients add up in the order of the shares."""

    @staticmethod
    def forward(
        ctx: Any, network: nn.Module, rows: Tensor, shares: int, *parameters: Tensor
    ) -> Tensor:
        ctx.outputs = _forward(network, rows, shares, learns=True)
        ctx.parameters = parameters
        return torch.cat([output.detach() for output in ctx.outputs])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients

        def share(output: Tensor, part: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(output, ctx.parameters, part, materialize_grads=True)

        parts = gradient.split([len(output) for output in ctx.outputs])
        total, *others = on_threads(share, ctx.outputs, parts)
        ctx.outputs = None  # their graphs are used up
        for other in others:
            torch._foreach_add_(total, other)
        return (None, None, None, *total)


def _forward(network: nn.Module, rows: Tensor, shares: int, learns: bool) -> list[Tensor]:
    mixed, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def share(part: Tensor) -> Tensor:  # modes belong to a thread
        with torch.set_grad_enabled(learns), torch.autocast("cpu", dtype, mixed):
            output: Tensor = network(part)
        return output

    return on_threads(share, rows.tensor_split(shares))


def on_threads(work: Callable[..., T], *columns: Any) -> list[T]:
    """Return `work` of each row of the columns, each on its own thread, core and modes."""
    workers = _workers(len(columns[0]))
    rows = zip(workers, *columns, strict=True)
    running = [worker.submit(work, *arguments) for worker, *arguments in rows]
    return [future.result() for future in running]


@functools.cache
def _workers(number: int) -> list[ThreadPoolExecutor]:
    """Return threads whose operations use one core each."""
    usual = torch.get_num_threads()
    workers = [ThreadPoolExecutor(1) for _ in range(number)]
    for worker in workers:
        worker.submit(torch.set_num_threads, 1).result()  # also the default of new threads
        worker.submit(torch.get_num_threads).result()  # fixes the number for this thread
    torch.set_num_threads(usual)
    return workers
