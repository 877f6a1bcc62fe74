"""Threads of one core each, which do not wait for each other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")


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
