"""Data parallelism on a CPU: each core gets a share of the batch and its own thread.

The threads do not wait for each other. By default PyTorch splits every operation among all threads,
which wait for each other thousands of times in a bfloat16 backward convolution of oneDNN. If
another process uses one of the cores, training becomes a hundred times slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

LEAST = 64  # minimum rows per share; with fewer rows, PyTorch's own threading is faster

T = TypeVar("T")


def shares_of(rows: int) -> int:
    """Return the number of threads that share a batch; below 2 the batch is not split."""
    return min(torch.get_num_threads(), rows // LEAST)


def with_batch_threads(network: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a network so that, on a CPU, each thread processes a share of the batch.

    Only networks with `independent_rows = True` are wrapped: each output row depends on one input
    row, and the network draws no random numbers and changes no buffers.
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
            return torch.cat(_forward(self.network, rows, shares, with_grad=False))
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        outputs: Tensor = _SplitPass.apply(self.network, rows, shares, *parameters)
        return outputs


class _SplitPass(torch.autograd.Function):
    """Forward and backward pass over all shares; gradients are added in the order of shares."""

    @staticmethod
    def forward(
        ctx: Any, network: nn.Module, rows: Tensor, shares: int, *parameters: Tensor
    ) -> Tensor:
        ctx.outputs = _forward(network, rows, shares, with_grad=True)
        ctx.parameters = parameters
        return torch.cat([output.detach() for output in ctx.outputs])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients

        def differentiate(output: Tensor, share: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(output, ctx.parameters, share, materialize_grads=True)

        shares = gradient.split([len(output) for output in ctx.outputs])
        total, *others = on_threads(differentiate, ctx.outputs, shares)
        ctx.outputs = None  # frees the used autograd graphs
        for other in others:
            torch._foreach_add_(total, other)
        return (None, None, None, *total)


def _forward(network: nn.Module, rows: Tensor, shares: int, with_grad: bool) -> list[Tensor]:
    mixed, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def run_network(share: Tensor) -> Tensor:  # grad and autocast modes are per thread
        with torch.set_grad_enabled(with_grad), torch.autocast("cpu", dtype, mixed):
            output: Tensor = network(share)
        return output

    return on_threads(run_network, rows.tensor_split(shares))


def on_threads(work: Callable[..., T], *columns: Any) -> list[T]:
    """Call `work` for each row of `columns` on its own one-core thread; return the results."""
    workers = _workers(len(columns[0]))
    rows = zip(workers, *columns, strict=True)
    running = [worker.submit(work, *arguments) for worker, *arguments in rows]
    return [future.result() for future in running]


@functools.cache
def _workers(number: int) -> list[ThreadPoolExecutor]:
    """Return thread pools of one thread, whose PyTorch operations use one core each."""
    previous = torch.get_num_threads()
    workers = [ThreadPoolExecutor(1) for _ in range(number)]
    for worker in workers:
        worker.submit(torch.set_num_threads, 1).result()  # also the default of new threads
        worker.submit(torch.get_num_threads).result()  # fixes the number for this thread
    torch.set_num_threads(previous)
    return workers
