"""Versions of kernels, and which of them a device runs."""

from __future__ import annotations

from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.config.learning import ComputeConfig
from marl_framework.device import Lack, launched_on, triton_lacks


class Version(Enum):
    """How a kernel is computed."""

    PLAIN = "plain operators"
    LOOPS = "compiled loops"
    TRITON = "Triton"


class Kernel(NamedTuple):
    """An entry of a contract, in its dictionary `KERNELS`."""

    twin: str
    """Dotted path of the plain version, which the others equal up to rounding."""
    loops: str = ""
    """Names of functions in the contract's `_numba` file."""
    triton: str = ""
    """Names of kernels in its `_triton` file."""


def version_for(compute: ComputeConfig, device: torch.device) -> Version:
    """Return the fastest version for a device; plain operators if `compute.compile` is off."""
    if compute.compile and triton_lacks(device) is None:
        return Version.TRITON
    if compute.compile and device.type == "cpu" and loops_compile():
        return Version.LOOPS
    return Version.PLAIN


def window_kernels(compute: ComputeConfig, device: torch.device) -> tuple[str, Lack | None]:
    """Return the name of a device's version, and why a GPU does not run Triton."""
    name = version_for(compute, device).value
    if device.type == "cpu":
        return name, None
    if not compute.compile:
        return name, Lack("compute.compile is false", "set compute.compile: true")
    return name, triton_lacks(device)


@cache
def loops_compile() -> bool:
    """Return whether numba is installed and has a place for its cache."""
    try:
        import_module("marl_framework.kernels.words_numba")
    except (ImportError, RuntimeError):
        return False
    return True


def load(contract: str, version: Version) -> Any:
    """Import the loops or the Triton kernels of a contract; Triton takes a second to import."""
    suffix = "numba" if version is Version.LOOPS else "triton"
    return import_module(f"marl_framework.kernels.{contract}_{suffix}")


def launch(kernel: str, programs: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a Triton kernel, `contract.name`, on the GPU of its tensors; booleans come as int8.

    Arguments are tensors, numbers, and named tuples of tensors; the first has a tensor. Options are
    constants of the kernel and options of Triton.
    """
    contract, _, name = kernel.partition(".")
    given = [_as_bytes(argument) for argument in arguments]
    with launched_on(given[0] if isinstance(given[0], Tensor) else given[0][0]):
        getattr(load(contract, Version.TRITON), name)[programs](*given, **options)


def _as_bytes(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return type(argument)(*map(_as_bytes, argument))
    boolean = isinstance(argument, Tensor) and argument.dtype == torch.bool
    return argument.view(torch.int8) if boolean else argument


def check_contiguous(*tensors: Tensor) -> None:
    """Raise a ValueError unless all tensors are contiguous."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("kernels need contiguous tensors")


def block(number: int) -> int:
    """Return the size of a block for a number of items: the least power of two that holds them."""
    return 1 << (number - 1).bit_length()
