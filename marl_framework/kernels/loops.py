"""Helpers for the loops that numba compiles for the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from numba import get_num_threads, njit, set_num_threads
from torch import Tensor

from marl_framework.kernels.versions import check_contiguous

_THREADS = torch.get_num_threads()
_MOST_THREADS = get_num_threads()  # starts numba's pool, which changes OpenMP's threads
torch.set_num_threads(_THREADS)

# Vectorisation requires these options: sums may be reordered (NaN and infinity remain valid), and
# division by zero gives infinity instead of an exception.
FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "arcp", "nsz"}, "error_model": "numpy"}


def loop(**options: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles and caches a loop, with `FAST` and other numba options."""

    def compile_loop(function: Any) -> Any:
        compiled = njit(cache=True, **{**FAST, **options})(function)
        _remove_if_outdated(compiled)
        return compiled

    return compile_loop


def views(*tensors: Tensor) -> list[Any]:
    """Return arrays that share the tensors' memory, and set numba's threads to PyTorch's."""
    use_all_threads()
    check_contiguous(*tensors)
    return [tensor.numpy() for tensor in tensors]


def use_all_threads() -> None:
    """Let numba use as many threads as PyTorch in subsequent loops."""
    set_num_threads(min(torch.get_num_threads(), _MOST_THREADS))


def _remove_if_outdated(loop: Any) -> None:
    """Delete a cached loop if any kernel file has changed; numba checks only the loop's file."""
    if not hasattr(loop, "stats"):  # NUMBA_DISABLE_JIT leaves functions unchanged
        return
    name = f"{Path(loop.py_func.__code__.co_filename).stem}.{loop.__name__}"
    folder = Path(loop.stats.cache_path)
    stamp = folder / f"{name}.sha256"
    with suppress(OSError):  # a read-only folder contains no loops
        if not stamp.exists() or stamp.read_text(encoding="ascii") != _checksum():
            for index in folder.glob(f"{name}-*.nbi"):
                index.unlink(missing_ok=True)
            stamp.write_text(_checksum(), encoding="ascii")


@cache
def _checksum() -> str:
    """Return the SHA-256 checksum of all files that contain loops or constants for them."""
    folder = Path(__file__).parent
    files = [*sorted(folder.glob("*_numba.py")), folder / "cells.py", Path(__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
