"""Kernel versions, and the choice of a version for a device."""

from __future__ import annotations

from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.learning import ComputeConfig
from marl_framework.device import Lack, launched_on, triton_lacks


class Version(Enum):
    """Implementation of a kernel."""

    PLAIN = "plain operators"
    LOOPS = "compiled loops"
    TRITON = "Triton"


def version_for(compute: ComputeConfig, device: torch.device) -> Version:
    """Return the fastest version for a device; plain operators if `compute.compile` is off."""
    if compute.compile and triton_lacks(device) is None:
        return Version.TRITON
    if compute.compile and device.type == "cpu" and loops_compile():
        return Version.LOOPS
    return Version.PLAIN


def window_kernels(compute: ComputeConfig, device: torch.device) -> tuple[str, Lack | None]:
    """Return the name of the version for a device, and the reason if a GPU cannot use Triton."""
    name = version_for(compute, device).value
    if device.type == "cpu":
        return name, None
    if not compute.compile:
        return name, Lack("compute.compile is false", "set compute.compile: true")
    return name, triton_lacks(device)


@cache
def loops_compile() -> bool:
    """Return whether numba is installed and can write its cache."""
    try:
        import_module("marl_framework.kernels.words_numba")
    except (ImportError, RuntimeError):
        return False
    return True


def load(contract: str, version: Version) -> Any:
    """Import a contract's loops or Triton kernels on demand; importing Triton takes a second."""
    suffix = "numba" if version is Version.LOOPS else "triton"
    return import_module(f"marl_framework.kernels.{contract}_{suffix}")


def launch(kernel: str, programs: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a Triton kernel, named `contract.name`, on the GPU that holds the tensors.

    Arguments are numbers, tensors (bool is passed as int8) and named tuples of tensors; the first
    argument contains a tensor. Options are the kernel's constants and Triton's launch options.
    """
    contract, _, name = kernel.partition(".")
    given = [_as_bytes(argument) for argument in arguments]
    with launched_on(given[0] if isinstance(given[0], Tensor) else given[0][0]):
        # From Triton 3.10 on, a multiplication and an addition are fused only on request.
        options["enable_fp_fusion"] = True
        getattr(load(contract, Version.TRITON), name)[programs](*given, **options)


def _as_bytes(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return type(argument)(*map(_as_bytes, argument))
    is_mask = isinstance(argument, Tensor) and argument.dtype == torch.bool
    return argument.view(torch.int8) if is_mask else argument


def check_contiguous(*tensors: Tensor) -> None:
    """Raise a ValueError unless all tensors are contiguous."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("kernels require contiguous tensors; call .contiguous()")


def block(number: int) -> int:
    """Return the smallest power of two that is at least `number`, as a block size."""
    return 1 << (number - 1).bit_length()
