"""Run functions in new processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

_shared: dict[str, Any] = {}  # barrier and counter that the processes of `run_at_once` share


def run_at_once(work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a picklable function for all tuples of arguments at once, each in a new process."""
    context, number = get_context("spawn"), len(arguments)
    shared = {"ready": context.Barrier(number), "busy": context.Value("i", number)}
    with ProcessPoolExecutor(number, context, _receive, (shared,)) as pool:
        return list(pool.map(work, *zip(*arguments, strict=True)))


def wait_for_others() -> None:
    """Wait until all processes of `run_at_once` have called this function."""
    _shared["ready"].wait()


def repeat_until_all_are_here(work: Callable[[], object]) -> None:
    """Repeat `work()` until all processes of `run_at_once` have called this function."""
    with _shared["busy"].get_lock():
        _shared["busy"].value -= 1
    while _shared["busy"].value:
        work()


def _receive(shared: dict[str, Any]) -> None:
    _shared.update(shared)
