"""Common parts of the loops that numba compiles for the CPU."""

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
_MOST_THREADS = get_num_threads()  # starts numba's pool, which sets OpenMP's number for all
torch.set_num_threads(_THREADS)

# Vector registers need these: sums may be reordered (NaN and infinity keep their meaning), and a
# division by zero gives infinity instead of an exception.
FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "arcp", "nsz"}, "error_model": "numpy"}


def loop(**options: Any) -> Callable[[Any], Any]:
    """Compile a function that Python calls, with `FAST` and other options, and cache the result."""

    def compiled(function: Any) -> Any:
        made = njit(cache=True, **{**FAST, **options})(function)
        _forget_if_outdated(made)
        return made

    return compiled


def views(*tensors: Tensor) -> list[Any]:
    """Return arrays on the tensors' memory, for loops on as many threads as PyTorch has."""
    use_all_threads()
    check_contiguous(*tensors)
    return [tensor.numpy() for tensor in tensors]


def use_all_threads() -> None:
    """Run the loops that follow on as many threads as PyTorch has."""
    set_num_threads(min(torch.get_num_threads(), _MOST_THREADS))


def _forget_if_outdated(loop: Any) -> None:
    """Remove a cached loop compiled with other versions of its functions; numba checks one file."""
    if not hasattr(loop, "stats"):  # NUMBA_DISABLE_JIT leaves functions unchanged
        return
    name = f"{Path(loop.py_func.__code__.co_filename).stem}.{loop.__name__}"
    folder = Path(loop.stats.cache_path)
    stamp = folder / f"{name}.sha256"
    with suppress(OSError):  # a folder that cannot be written holds no loops
        if not stamp.exists() or stamp.read_text(encoding="ascii") != _checksum():
            for index in folder.glob(f"{name}-*.nbi"):
                index.unlink(missing_ok=True)
            stamp.write_text(_checksum(), encoding="ascii")


@cache
def _checksum() -> str:
    folder = Path(__file__).parent
    files = [*sorted(folder.glob("*_numba.py")), folder / "cells.py", Path(__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
